"""Write the pseudo files of a training node: 8 RDMA ports, 200 sensors, 16 memory counters, 10 disks, 1 NFS mount.

python benchmarks/agent/machine.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

PORTS = 8
CHIPS, SENSORS_A_CHIP = 10, 20
COUNTERS = (
    "VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery",
    "local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets", "port_rcv_constraint_errors",
    "port_rcv_data", "port_rcv_errors", "port_rcv_packets", "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_xmit_data", "port_xmit_discards",
    "port_xmit_packets", "port_xmit_wait", "symbol_error", "unicast_rcv_packets", "unicast_xmit_packets",
)  # fmt: skip
HW_COUNTERS = (
    "duplicate_request", "implied_nak_seq_err", "lifespan", "local_ack_timeout_err", "np_cnp_sent",
    "np_ecn_marked_roce_packets", "out_of_buffer", "out_of_sequence", "packet_seq_err", "req_cqe_error",
    "req_cqe_flush_error", "req_remote_access_errors", "req_remote_invalid_request", "resp_cqe_error",
    "resp_cqe_flush_error", "resp_local_length_error", "resp_remote_access_errors", "rnr_nak_retry_err",
    "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps", "roce_slow_restart_trans",
    "rp_cnp_handled", "rp_cnp_ignored", "rx_atomic_requests", "rx_icrc_encapsulated", "rx_read_requests",
    "rx_write_requests",
)  # fmt: skip


def files() -> Iterator[tuple[str, str]]:
    """Yield path and content of every file."""
    yield from _ports()
    yield from _sensors()
    yield from _host()


def _ports() -> Iterator[tuple[str, str]]:
    for number in range(PORTS):
        folder = f"sys/class/infiniband/mlx5_{number}"
        yield f"{folder}/fw_ver", "28.39.1002"
        yield f"{folder}/board_id", "MT_0000000838"
        port = f"{folder}/ports/1"
        yield f"{port}/state", "4: ACTIVE"
        yield f"{port}/phys_state", "5: LinkUp"
        yield f"{port}/rate", "400 Gb/sec (4X NDR)"
        yield f"{port}/link_layer", "InfiniBand"
        for place, name in enumerate(COUNTERS):
            yield f"{port}/counters/{name}", str(10**place * (number + 1) if "port_" in name else 0)
        for place, name in enumerate(HW_COUNTERS):
            yield f"{port}/hw_counters/{name}", str(place)


def _sensors() -> Iterator[tuple[str, str]]:
    for chip in range(CHIPS):
        folder = f"sys/class/hwmon/hwmon{chip}"
        yield f"{folder}/name", f"chip{chip}"
        for number in range(1, SENSORS_A_CHIP // 2 + 1):
            yield f"{folder}/temp{number}_input", str(40_000 + 100 * number)
            yield f"{folder}/temp{number}_label", "Inlet" if chip == number == 1 else f"Sensor {number}"
            yield f"{folder}/temp{number}_crit", "95000"
            yield f"{folder}/temp{number}_crit_alarm", "0"
        for number in range(1, SENSORS_A_CHIP // 4 + 1):
            yield f"{folder}/in{number}_input", str(1000 + number)
            yield f"{folder}/fan{number}_input", str(5000 + number)
    for controller in range(4):
        for name in ("ce_count", "ue_count", "ce_noinfo_count", "ue_noinfo_count"):
            yield f"sys/devices/system/edac/mc/mc{controller}/{name}", "0"


def _host() -> Iterator[tuple[str, str]]:
    disks = [f"nvme{number}n1" for number in range(10)]
    for name in disks:
        yield f"sys/block/{name}/size", "1"
    yield (
        "proc/diskstats",
        "".join(
            f" 259 {place} {name} 47114 4 4643973 21650 1078320 43950 39451633 1011053 0 222766 1032546 0 0 0 0 0 0\n"
            for place, name in enumerate(disks)
        ),
    )
    yield (
        "proc/1/mountstats",
        (
            "device 10.0.0.1:/data mounted on /data with fstype nfs4 statvers=1.1\n"
            "\tbytes:\t12 13 0 0 1210214218 77 295483 0\n\tper-op statistics\n"
            "\t        READ: 1298 1298 0 207680 1210292152 6 79386 79407\n\t       WRITE: 9 9 0 9 9 9 9 9\n"
        ),
    )
    yield "proc/stat", "cpu  25354637 34367 3346126 1849237200 28444756 0 505697 0 0 0\n"
    yield "proc/loadavg", "12.50 12.00 11.00 20/4000 123456\n"
    yield "proc/meminfo", "MemTotal: 2113536000 kB\nMemFree: 1000 kB\nMemAvailable: 1800000000 kB\n"
    yield "proc/uptime", "350735.47 234388.90\n"
    for name in ("cpu", "io", "memory"):
        yield (
            f"proc/pressure/{name}",
            "".join(f"{who} avg10=0.00 avg60=0.00 avg300=0.00 total=123456\n" for who in ("some", "full")),
        )
    yield "proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"
    # What only node_exporter reads is copied from this machine, so that it does its usual work.
    for name in (
        "net/netstat",
        "net/snmp",
        "net/sockstat",
        "net/softnet_stat",
        "net/dev",
        "net/arp",
        "vmstat",
        "schedstat",
        "sys/fs/file-nr",
        "sys/kernel/random/entropy_avail",
        "sys/kernel/random/poolsize",
        "cpuinfo",
    ):
        file = Path("/proc") / name
        if file.exists():
            yield f"proc/{name}", file.read_text()


def write(root: Path) -> None:
    """Write all files below `root`."""
    for path, content in files():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if content.endswith("\n") else content + "\n")
    # As in a real /proc, which node_exporter insists on.
    (root / "proc/self").symlink_to("1")


if __name__ == "__main__":
    write(Path(sys.argv[1]))

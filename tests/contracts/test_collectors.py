"""What every registered collector keeps: catalogue columns and types, NoData on an empty root, no crash on garbage."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flightwatch.collectors.environment import environment_at
from flightwatch.collectors.registry import COLLECTORS, Entry
from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import FlightwatchError, NoData
from flightwatch.core.protocols import Collector, Row
from flightwatch.core.vocabulary import EventSeverity, EventSource, StorageKind

ENTRIES = [Entry(name, module, class_name) for name, module, class_name, _ in COLLECTORS]
#: One healthy machine: every file a collector of this list reads.
MACHINE: dict[str, bytes] = {
    "proc/stat": b"cpu  10 0 10 70 10 0 0 0 0 0\n",
    "proc/loadavg": b"1 1 1 1/1 1\n",
    "proc/meminfo": b"MemTotal: 20 kB\nMemAvailable: 5 kB\n",
    "proc/pressure/cpu": b"some avg10=0 total=5\n",
    "proc/diskstats": b"8 0 sda 10 0 80 5 20 0 160 9 0 9 14\n",
    "proc/self/mountstats": b"device a:/b mounted on /c with fstype nfs statvers=1.1\n"
    b"\tbytes:\t0 0 0 0 7 8 0 0\n\t READ: 1 1 0 1 1 1 1 1\n\t WRITE: 1 1 0 1 1 1 1 1\n",
    "proc/sys/kernel/osrelease": b"6.1\n",
    "proc/cmdline": b"iommu=pt\n",
    "proc/cpuinfo": b"model name : x\n",
    "etc/os-release": b'PRETTY_NAME="x"\n',
    "sys/block/sda/size": b"1\n",
    "sys/class/hwmon/hwmon0/name": b"coretemp\n",
    "sys/class/hwmon/hwmon0/temp1_input": b"41000\n",
    "sys/class/hwmon/hwmon0/temp1_label": b"Inlet\n",
    "sys/class/hwmon/hwmon0/temp1_crit": b"90000\n",
    "sys/class/hwmon/hwmon0/fan1_input": b"900\n",
    "sys/class/hwmon/hwmon0/in0_input": b"1000\n",
    "sys/class/hwmon/hwmon0/power1_average": b"1000000\n",
    "sys/class/hwmon/hwmon0/energy1_input": b"1000000\n",
    "sys/class/hwmon/hwmon0/temp1_fault": b"0\n",
    "sys/class/thermal/thermal_zone0/type": b"pkg\n",
    "sys/class/thermal/thermal_zone0/temp": b"40000\n",
    "sys/devices/system/edac/mc/mc0/ce_count": b"1\n",
    "sys/devices/system/edac/mc/mc0/csrow0/ch0_ue_count": b"1\n",
    "sys/class/infiniband/mlx5_0/fw_ver": b"1\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": b"4: ACTIVE\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": b"100 Gb/sec (4X EDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": b"1\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait": b"1\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters_ext/port_rcv_data_64": b"1\n",
    "sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence": b"1\n",
    "sys/class/infiniband/mlx5_0/ports/1/hw_counters/duplicate_request": b"1\n",
    "sys/class/net/eth0/mtu": b"1500\n",
    "proc/fs/lustre/osc/fs-OST0000-osc-ffff88105db50000/stats": b"snapshot_time 1700000000.5 secs.nsecs\n"
    b"req_active 4 samples [reqs] 1 2 6 10\nost_write 4 samples [usec] 1 9 20 99\n",
    "proc/fs/lustre/osc/fs-OST0000-osc-ffff88105db50000/import": b"import:\n    state: FULL\n    inflight: 1\n",
    "run/flightwatch/jobs/7.json": b'{"job": "7", "devices": [0, 1], "ranks": [8]}',
    "proc/77/environ": b"RANK=3\0LOCAL_RANK=2\0SLURM_JOB_ID=9\0SECRET=x\0",
    "proc/77/cgroup": b"0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n",
    "sys/class/net/eth0/device/uevent": b"DRIVER=x\n",
}
#: Collectors that need a library, a command, a device file or a running agent.
LIVE_ONLY = {
    "nvml",
    "nvidia-smi",
    "kernel",
    "heartbeat",
    "logs",
    "ethtool",
    "ipmi",
    "journal",
    "job-exits",
    "redfish",
    "amd",
    "mthreads",
    "ascend",
    "metax",
    "cambricon",
    "iluvatar",
    "hygon",
    "intel",
    "scrape",
    "probe",
}
_UNSIGNED = {"u8": 8, "u16": 16, "u32": 32, "u64": 64}
_SIGNED = {"i16": 15, "i32": 31, "i64": 63}


def _write(root: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _collect(collector: Collector, times: int = 2) -> list[Row]:
    """Call a collector; what is expected of it in trouble is a FlightwatchError and nothing else."""
    rows: list[Row] = []
    for number in range(times):
        try:
            rows.extend(collector.collect(1_700_000_000_000 + number * 5000))
        except FlightwatchError:
            continue
    return rows


def check_rows(rows: Iterable[Row]) -> None:
    """Assert that rows hold only catalogue columns with values of the column's type."""
    for row in rows:
        table = TABLES[row.table]
        assert table.lane is not None, f"{row.table} is not sent by agents"
        for name, value in row.values.items():
            assert name not in ("received_at", "src_partition", "src_offset")
            check_value(row.table, table.column(name), value)
        for column in table.columns:
            if not column.nullable and column.source == "agent" and column.name not in ("cluster", "node", "attrs"):
                present = row.values.get(column.name) is not None
                assert present or column.type.startswith("map"), f"{row.table}.{column.name} must be known"
        if row.table == "events":
            assert row.values["severity"] in [severity.value for severity in EventSeverity]
            assert row.values["source"] in [source.value for source in EventSource]
        if row.table == "storage_samples":
            assert row.values["kind"] in [kind.value for kind in StorageKind]


def check_value(table: str, column: Any, value: Any) -> None:
    """Assert that one value fits its column."""
    where = f"{table}.{column.name} = {value!r}"
    if value is None:
        assert column.nullable, where
    elif column.type in _UNSIGNED:
        assert type(value) is int, where
        assert 0 <= value < 1 << _UNSIGNED[column.type], where
    elif column.type in _SIGNED or column.type == "time":
        assert type(value) is int, where
    elif column.type in ("f32", "f64"):
        assert type(value) in (int, float), where
        assert math.isfinite(value), where
    elif column.type == "bool":
        assert type(value) is bool, where
    elif column.type in ("word", "text"):
        assert type(value) is str, where
        assert value.encode(), where
    else:
        kinds = {"map_f64": (int, float), "map_u64": (int,), "map_text": (str,)}[column.type]
        assert all(type(key) is str and type(cell) in kinds for key, cell in value.items()), where


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_empty_root_is_no_data(entry: Entry, tmp_path: Path) -> None:
    collector = entry.make(environment_at(str(tmp_path)))
    with pytest.raises(NoData) as caught:
        list(collector.collect(1_700_000_000_000))
    assert str(caught.value)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_rows_fit_the_catalogue_on_a_healthy_machine(entry: Entry, tmp_path: Path) -> None:
    _write(tmp_path, MACHINE)
    rows = _collect(entry.make(environment_at(str(tmp_path))))
    check_rows(rows)
    assert bool(rows) == (entry.name not in LIVE_ONLY)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_on_this_machine_rows_fit_the_catalogue_in_bounded_time(entry: Entry) -> None:
    collector = entry.make(environment_at("/"))
    started = time.monotonic()
    check_rows(_collect(collector))
    assert time.monotonic() - started < 30
    close = getattr(collector, "close", None)
    if close is not None:
        close()


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    contents=st.lists(
        st.one_of(
            st.binary(max_size=120),
            st.sampled_from(
                (b"", b"\n", b"-1\n", b"18446744073709551616\n", b"9" * 400, b"nan\n", b"1e999", b"N/A (no PMA)\n",
                 b"\x00\x01", b"\xff" * 50, b"some total=-5", b"cpu  " + b"9" * 30 + b" 1 1 1")
            ),
            st.integers(-(2**70), 2**70).map(lambda number: b"%d\n" % number),
        ),
        min_size=len(MACHINE),
        max_size=len(MACHINE),
    )
)  # fmt: skip
def test_garbage_in_every_file_never_raises_and_never_breaks_a_type(
    contents: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("machine")
    # First healthy, then damaged under the reader's feet: plans made on good files must survive bad ones.
    _write(root, MACHINE)
    collectors = [entry.make(environment_at(str(root))) for entry in ENTRIES]
    for collector in collectors:
        _collect(collector, 1)
    _write(root, dict(zip(MACHINE, contents, strict=True)))
    fresh = [entry.make(environment_at(str(root))) for entry in ENTRIES]
    for collector in (*collectors, *fresh):
        check_rows(_collect(collector))

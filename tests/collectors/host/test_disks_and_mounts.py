from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.collectors.disks import DiskCollector, parse_diskstats
from flightwatch.collectors.mountstats import NfsCollector, parse_mountstats
from flightwatch.collectors.storage_rates import StorageCounters, StorageRates
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note

DISKS = (
    " 259 0 nvme0n1 47114 4 4643973 21650 1078320 43950 39451633 1011053 0 222766 1032546\n"
    "   8 16 sdb 326552 841 9657779 84 41822 2895 1972905 5007 3 60730 67070 68851 0 1925173784 11130\n"
    "   8 17 sdb1 231 3 34466 4 24 23 106 0 0 64 64 0 0 0 0 0 0\n"
    "   7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n"
)
MOUNTS = """device proc mounted on /proc with fstype proc
device 10.1.2.3:/a mounted on /data/my\\040set with fstype nfs4 statvers=1.1
\tbytes:\t12 13 0 0 1210214218 77 295483 0
\tper-op statistics
\t        READ: 1298 1298 0 207680 1210292152 6 79386 79407
\t       WRITE: 0 0 0 0 0 0 0 0
\t      ACCESS: 5 5 0 0 0 0 0 0
device 10.1.2.3:/b mounted on /scratch with fstype nfs statvers=1.1
\tbytes:\t1 2 3
\t        READ: 10 x
device tmpfs mounted on /tmp with fstype tmpfs
"""


def test_diskstats_of_every_generation() -> None:
    found = {item.target: item for item in parse_diskstats(DISKS.encode()) if isinstance(item, StorageCounters)}
    assert list(found) == ["nvme0n1", "sdb", "sdb1", "loop0"]
    row = found["nvme0n1"].row(1, None, None).values
    assert row["read_ms"] == pytest.approx(21650 / 47114)
    assert row["write_ms"] == pytest.approx(0.9376, abs=1e-4)
    assert row["read_bytes_total"] == 4643973 * 512
    assert found["sdb"].inflight == 3
    assert found["loop0"].row(1, None, None).values["read_ms"] is None


@pytest.mark.parametrize("line", ["8 0 sda 1 2 3", "8 0 sda " + "x " * 11, "8 0 sda " + "-1 " * 11, "\xff\n\xfe"])
def test_a_line_that_is_none_is_an_error_note_and_the_rest_is_read(line: str) -> None:
    found = list(parse_diskstats((line + "\n" + DISKS).encode()))
    assert isinstance(found[0], Note)
    assert found[0].where == "line 1"
    assert [item.target for item in found if isinstance(item, StorageCounters)][-1] == "loop0"


def test_an_in_flight_count_below_zero_is_unknown() -> None:
    line = f"8 0 sda 1 0 8 1 1 0 8 1 {2**32 - 2} 1 1"
    assert [item.inflight for item in parse_diskstats(line.encode()) if isinstance(item, StorageCounters)] == [None]


def _counters(reads: int, read_ms: int, weighted_ms: int) -> StorageCounters:
    return StorageCounters("sda", "disk", reads, 0, read_ms, 0, 0, 0, weighted_ms)


def test_rates_are_since_the_last_sample() -> None:
    rates = StorageRates()
    assert rates.row(_counters(100, 1000, 0), 0, 10.0).values["read_ms"] is None
    row = rates.row(_counters(110, 1050, 2500), 1, 15.0).values
    assert (row["read_ms"], row["write_ms"], row["queue_depth"]) == (5.0, None, 0.5)
    idle = rates.row(_counters(110, 1050, 2500), 2, 20.0).values
    assert (idle["read_ms"], idle["queue_depth"]) == (None, 0.0)
    reset = rates.row(_counters(5, 10, 20), 3, 25.0).values
    assert (reset["read_ms"], reset["queue_depth"]) == (None, None)
    twice_at_once = rates.row(_counters(6, 11, 21), 4, 25.0).values
    assert (twice_at_once["read_ms"], twice_at_once.get("queue_depth")) == (1.0, None)


def test_partitions_and_idle_disks_are_not_collected(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    tree = tree_of({"proc/diskstats": DISKS, "sys/block/nvme0n1/x": "", "sys/block/sdb/x": "", "sys/block/loop0/x": ""})
    environment = environment_of(tree)
    rows = list(DiskCollector(environment).collect(1))
    assert [row.values["target"] for row in rows] == ["nvme0n1", "sdb"]
    assert environment.summary.merged(1, 0) == {"io_queue_depth": None, "io_read_ms": None, "io_write_ms": None}


def test_a_recorded_diskstats_gives_lifetime_averages() -> None:
    found = parse_diskstats(DISKS.encode())
    rows = [item.row(None, None, None) for item in found if isinstance(item, StorageCounters)]
    assert len(rows) == 4
    assert rows[1].values["write_ms"] == pytest.approx(5007 / 41822)


def test_only_nfs_mounts_are_read_and_what_is_cut_off_is_noted() -> None:
    items = list(parse_mountstats(MOUNTS.encode()))
    rows = [item.row(3, None, None).values for item in items if isinstance(item, StorageCounters)]
    assert [(row["target"], row["kind"]) for row in rows] == [("/data/my set", "nfs"), ("/scratch", "nfs")]
    assert rows[0]["read_ms"] == pytest.approx(61.16, abs=0.01)
    assert (rows[0]["write_ms"], rows[0]["read_bytes_total"], rows[0]["write_bytes_total"]) == (None, 1210214218, 77)
    assert rows[1]["read_ops_total"] is None
    assert [item.where for item in items if isinstance(item, Note)] == ["line 9", "line 10"]


def test_a_control_character_in_a_mount_point_stays_escaped() -> None:
    line = "device a:/b mounted on /x\\012y\\040z with fstype nfs statvers=1.1"
    assert [item.target for item in parse_mountstats(line.encode()) if isinstance(item, StorageCounters)] == [
        "/x\\012y z"
    ]


def test_the_slowest_mount_reaches_the_nodes_row(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    environment = environment_of(tree_of({"proc/self/mountstats": MOUNTS}))
    collector = NfsCollector(environment)
    collector.collect(1)
    tree_of({"proc/self/mountstats": MOUNTS.replace("READ: 1298", "READ: 1300").replace("79386", "79986")})
    collector.collect(2)
    assert environment.summary.merged(2, 0) == {"fs_read_ms": 300.0, "fs_write_ms": None}


def test_no_nfs_is_no_data(tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> None:
    tree = tree_of({"proc/self/mountstats": "device proc mounted on /proc with fstype proc\n"})
    with pytest.raises(NoData):
        NfsCollector(environment_of(tree)).collect(1)
    with pytest.raises(NoData):
        DiskCollector(environment_of(tree)).collect(1)

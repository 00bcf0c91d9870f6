"""Storage: diskstats, mountstats, nfsiostat, GPFS, BeeGFS, Lustre."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.captures.lustre import LustreTreeParser
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.protocols import CaptureContext, Row

Read = Callable[[str], Any]


def test_diskstats_of_every_width(sample: Read) -> None:
    nvme, sda, sdb = sample("diskstats").of("storage_samples")
    assert (nvme["read_ms"], nvme["write_ms"], nvme["inflight"]) == (0.5, 1.5, 4)
    assert (sda["read_ms"], sda["write_ms"]) == (None, None)
    assert sdb["read_ms"] == 100.0


def test_mountstats(sample: Read) -> None:
    (mount,) = sample("mountstats").of("storage_samples")
    assert (mount["target"], mount["read_ms"], mount["write_ms"]) == ("/mnt/data", 25.0, 100.0)
    assert (mount["read_bytes_total"], mount["write_bytes_total"]) == (4000, 8000)


def test_nfsiostat_zeros_are_no_time(sample: Read) -> None:
    (mount,) = sample("nfsiostat.txt").of("storage_samples")
    assert (mount["target"], mount["read_ms"], mount["write_ms"]) == ("/mnt/data", 2.158, None)


def test_mmpmon(sample: Read) -> None:
    found = sample("mmpmon.txt")
    (scratch,) = found.of("storage_samples")
    assert (scratch["node"], scratch["target"], scratch["ts"]) == ("node07", "scratch", 1700000000250)
    assert (scratch["read_ops_total"], scratch["write_bytes_total"], scratch["read_ms"]) == (5942, 74839282351, None)
    assert found.said("return code 1")
    (plain,) = sample("mmpmon_plain.txt").of("storage_samples")
    assert (plain["node"], plain["target"], plain["write_ops_total"]) == ("node08", "scratch", 176495)
    third, fourth = sample("iohist.txt").of("storage_samples")
    assert (third["target"], third["read_ms"], third["write_ms"]) == ("3", 15.5, None)
    assert fourth["write_ms"] == 2.0


def test_beegfs(sample: Read) -> None:
    total, client = sample("beegfs_client.txt").of("storage_samples")
    assert (total["target"], total["read_ops_total"], total["write_bytes_total"]) == ("Sum", 20, 4 * 2**20)
    assert (client["target"], client["read_bytes_total"]) == ("192.0.2.4", round(2.5 * 2**20))
    (server,) = sample("beegfs_server.txt").of("storage_samples")
    assert (server["ts"], server["queue_depth"], server["read_ms"]) == (1700000001000, 7.0, None)


def test_lustre_parameters(sample: Read) -> None:
    found = sample("lctl.txt")
    first, second = found.of("storage_samples")
    assert (first["target"], first["read_ms"], first["queue_depth"], first["inflight"]) == ("fs1-OST0000", 2.0, 4.0, 3)
    assert (first["read_ops_total"], first["read_bytes_total"]) == (50, 52428800)
    assert (second["read_ms"], second["inflight"]) == (None, None)
    assert found.codes == ["lustre:disconnected"]
    assert found.said("100 % of all reads go to fs1-OST0000")


def test_brw_stats_are_upper_bounds(sample: Read) -> None:
    found = sample("brw_stats")
    (target,) = found.of("storage_samples")
    assert (target["read_ms"], target["write_ms"], target["queue_depth"]) == (5.0, 8.0, 2.0)
    assert found.said("at most")


@pytest.mark.parametrize("root", ["proc/fs/lustre", "sys/kernel/debug/lustre"])
def test_lustre_tree_below_any_root(root: str, tmp_path: Path) -> None:
    folder = tmp_path / root / "osc" / "fs1-OST0003-osc-ffff88105db50000"
    folder.mkdir(parents=True)
    (folder / "stats").write_text("snapshot_time 1700000000.5\nost_write 4 samples [usec] 1 9 20 99\nbroken line\n")
    (folder / "rpc_stats").write_text("")
    parser = LustreTreeParser()
    names = [f"{root}/osc/fs1-OST0003-osc-ffff88105db50000/stats"]
    assert parser.recognise_tree(names)
    assert all(parser.claims(name) for name in names)
    items = list(parser.parse_tree(FolderTree(str(tmp_path)), CaptureContext()))
    row = next(item for item in items if isinstance(item, Row))
    assert row.values["write_ms"] == 0.005
    errors = [item for item in items if not isinstance(item, Row) and item.level == "error"]
    assert len(errors) == 2

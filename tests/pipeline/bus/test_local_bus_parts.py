"""Parts of the local bus by themselves: folders, addresses, the choice of partitions, members that ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flightwatch.core.errors import ConfigError
from flightwatch.pipeline.bus.base import Partition, partition_number
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.folder import file_system, prepare
from flightwatch.pipeline.bus.groups import balance, is_gone, own_process
from flightwatch.pipeline.bus.local import LocalBus


def test_unusable_folders_are_refused_with_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not a folder"):
        prepare(tmp_path / "file")
    with pytest.raises(ConfigError, match="cannot create"):
        prepare(tmp_path / "file" / "below")
    (tmp_path / "open").mkdir(mode=0o755)
    prepare(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="belongs to uid"):
        prepare(tmp_path / "open")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "lustre", "ceph", "9p"])
def test_network_file_systems_are_refused(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    point = str(tmp_path / "with space").replace(" ", "\\040")
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {point} {kind} rw 0 0\n")
    with pytest.raises(ConfigError, match="network file system"):
        LocalBus(tmp_path / "with space" / "bus", mounts=mounts)
    LocalBus(tmp_path / "local", mounts=mounts).close()
    assert file_system(tmp_path / "local", mounts) == "ext4"


def test_the_same_settings_find_the_same_partition_for_ever() -> None:
    # Fixed values: agents and servers of different versions must agree.
    assert [partition_number(key, 8) for key in ("node0", "node1", "节点", "a\udcff")] == [6, 0, 3, 4]


def test_balance_is_even_and_moves_little() -> None:
    partitions = [Partition("t", number) for number in range(7)]
    everything = balance(dict.fromkeys(partitions), {"a": {"t"}})
    assert set(everything.values()) == {"a"}
    three = balance(dict(everything), {"a": {"t"}, "b": {"t"}, "c": {"t"}})
    assert sorted(list(three.values()).count(name) for name in "abc") == [2, 2, 3]
    assert sum(three[partition] == "a" for partition in partitions) == 3
    two = balance(dict(three), {"a": {"t"}, "c": {"t"}})
    assert all(two[partition] == three[partition] for partition in partitions if three[partition] != "b")
    assert balance(dict.fromkeys(partitions), {"a": {"other"}}) == {}


def test_a_process_that_ended_is_known_to_be_gone() -> None:
    code = "from flightwatch.pipeline.bus.groups import own_process; print(own_process())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert is_gone(ended)
    assert not is_gone(own_process())
    assert not is_gone("999 1 1")


@pytest.mark.parametrize(
    "url", ["", "redis://x", "sqlite://", "sqlite:///", "sqlite:relative", "kafka://", "kafka://user:secret@host:9092"]
)
def test_other_urls_are_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(ConfigError, match=r"flightwatch\.bus") as caught:
        open_bus(url)
    assert "secret@" not in str(caught.value)

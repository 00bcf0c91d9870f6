from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.kernel_log import KernelLine, KernelLogCollector, captures_parser, parse_record
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Row


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"6,1234,5678901,-;NVRM: Xid\n SUBSYSTEM=pci\n DEVICE=+pci:0000\n", KernelLine(1234, 6, 5678901, "NVRM: Xid")),
        (b"28,9,5,c,caller=T1;a\\x09b\\xff;c\n", KernelLine(9, 4, 5, "a b\ufffd;c")),
        (b"3,1,2,-;bell \\x07 \\xzz\n", KernelLine(1, 3, 2, "bell \ufffd \\xzz")),
        (b"nonsense", None),
        (b"6,x,1,-;text", None),
        (b"6;text", None),
        (b"", None),
    ],
)
def test_records_of_the_ring(record: bytes, expected: KernelLine | None) -> None:
    assert parse_record(record) == expected


class Ring:
    """A seekable stand-in for the kernel's ring: one datagram a record."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, records: list[bytes | int]) -> None:
        self.records = records
        self.position = 0
        real_open, real_read, real_seek, real_close = os.open, os.read, os.lseek, os.close

        def open_(path: Any, *arguments: Any, **options: Any) -> int:
            if path == "/dev/kmsg":
                self.position = 0
                return 777
            return real_open(path, *arguments, **options)

        def read(descriptor: int, size: int) -> bytes:
            if descriptor != 777:
                return real_read(descriptor, size)
            if self.position >= len(self.records):
                raise BlockingIOError
            record = self.records[self.position]
            self.position += 1
            if isinstance(record, int):
                raise BrokenPipeError
            return record

        def seek(descriptor: int, *arguments: Any) -> int:
            if descriptor != 777:
                return real_seek(descriptor, *arguments)
            self.position = len(self.records)
            return 0

        monkeypatch.setattr(os, "open", open_)
        monkeypatch.setattr(os, "read", read)
        monkeypatch.setattr(os, "lseek", seek)
        monkeypatch.setattr(os, "close", lambda descriptor: None if descriptor == 777 else real_close(descriptor))


def _record(sequence: int, text: str) -> bytes:
    return f"3,{sequence},{sequence * 1_000_000},-;{text}\n".encode()


@pytest.fixture
def make(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any], tmp_path: Path
) -> Callable[[], KernelLogCollector]:
    tree = tree_of({"proc/sys/kernel/random/boot_id": "b00t\n"})

    def lines(read: Any) -> list[Row]:
        return [Row("events", {"ts": ts_ms, "message": line.text}) for line, ts_ms in read]

    return lambda: KernelLogCollector(
        environment_of(tree, live=True, state_dir=str(tmp_path)), parse=lines, boot_ms=lambda: 1_000_000.0
    )


def test_only_new_lines_are_read_and_a_restart_goes_on_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], KernelLogCollector]
) -> None:
    ring = Ring(monkeypatch, [_record(1, "old")])
    collector = make()
    assert list(collector.collect(9_000_000)) == []
    ring.records.append(_record(2, "new"))
    assert [row.values for row in collector.collect(9_000_000)] == [{"ts": 1_002_000, "message": "new"}]
    collector.close()
    ring.records.append(_record(3, "while away"))
    assert [row.values["message"] for row in make().collect(9_000_000)] == ["while away"]


def test_after_a_reboot_the_old_position_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], KernelLogCollector], tmp_path: Path
) -> None:
    (tmp_path / "kernel_position").write_text("another-boot 5000\n")
    ring = Ring(monkeypatch, [_record(1, "old")])
    collector = make()
    assert list(collector.collect(9_000_000)) == []
    ring.records.append(_record(2, "new"))
    assert [row.values["message"] for row in collector.collect(9_000_000)] == ["new"]


def test_an_overrun_is_said_and_times_are_never_later_than_now(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], KernelLogCollector]
) -> None:
    ring = Ring(monkeypatch, [])
    collector = make()
    collector.collect(1)
    ring.records += [0, _record(50, "after the gap")]
    rows = [row.values for row in collector.collect(1_001_000)]
    assert rows[0]["code"] == "kernel:overrun"
    assert rows[1] == {"ts": 1_001_000, "message": "after the gap"}


def test_the_captures_parser_knows_an_xid() -> None:
    text = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
    rows = list(captures_parser()([(KernelLine(7, 3, 5, text), 4242)]))
    assert [(row.values["code"], row.values["ts"]) for row in rows] == [("xid:79", 4242)]


def test_events_get_the_device_at_their_address(
    monkeypatch: pytest.MonkeyPatch, tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    environment = environment_of(tree_of({"x": ""}), live=True)
    environment.devices.offer("nvml", {"00000000:3B:00.0": 5})
    ring = Ring(monkeypatch, [])
    collector = KernelLogCollector(environment, boot_ms=lambda: 0.0)
    list(collector.collect(1))
    ring.records.append(_record(2, "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."))
    assert [(row.values["code"], row.values["device"]) for row in collector.collect(9_000_000)] == [("xid:79", 5)]


def test_a_recorded_tree_has_no_live_log(tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> None:
    with pytest.raises(NoData):
        KernelLogCollector(environment_of(tree_of({"x": ""}))).collect(1)

"""The journal followed live: named units, the kernel where nothing else reads it, cursors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors import journal_live
from flightwatch.collectors.journal_live import JournalCollector
from flightwatch.core.errors import NoData, TransientError

FABRIC = "detected NVSwitch fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61"
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."


class Journal:
    """Answers as journalctl does: entries after the cursor, then the new cursor."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.asked: list[Sequence[str]] = []

    def add(self, message: str, **fields: str) -> None:
        entry = {"MESSAGE": message, "__REALTIME_TIMESTAMP": "1795986062522867", "_HOSTNAME": "vm", **fields}
        self.entries.append(json.dumps(entry))

    def __call__(self, words: Sequence[str], timeout_seconds: float) -> bytes:
        self.asked.append(words)
        after = next((word.partition("=")[2] for word in words if word.startswith("--after-cursor")), None)
        if after is not None and not after.startswith("s=1;i="):
            raise TransientError("journalctl ended with status 1")
        shown = self.entries[int(after[6:]) :] if after is not None else []
        return "".join(f"{line}\n" for line in (*shown, f"-- cursor: s=1;i={len(self.entries)}")).encode()


@pytest.fixture
def make(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any], tmp_path: Path
) -> Callable[..., tuple[JournalCollector, Journal, Any]]:
    tree = tree_of({"var/log/journal/abc/system.journal": "x"})

    def make(journal: Journal | None = None, **changes: Any) -> tuple[JournalCollector, Journal, Any]:
        environment = environment_of(tree, live=True, state_dir=str(tmp_path), **changes)
        journal = journal or Journal()
        environment.run_command = journal
        return JournalCollector(environment), journal, environment

    return make


def codes(collector: JournalCollector) -> list[Any]:
    return [row.values["code"] for row in collector.collect(1_800_000_000_000)]


def test_new_entries_of_named_units_and_of_the_kernel(make: Callable[..., Any]) -> None:
    collector, journal, environment = make()
    journal.add(FABRIC, _SYSTEMD_UNIT="nvidia-fabricmanager.service")
    assert codes(collector) == []
    environment.devices.offer("nvml", {"0000:9b:00.0": 2})
    journal.add(FABRIC, _SYSTEMD_UNIT="nvidia-fabricmanager.service")
    journal.add(FABRIC, _SYSTEMD_UNIT="cron.service")
    journal.add(XID, _TRANSPORT="kernel")
    journal.entries.append("{broken")
    rows = list(collector.collect(1_800_000_000_000))
    assert [(row.values["code"], row.values["device"]) for row in rows] == [("sxid:12028", None), ("xid:79", 2)]
    assert {row.values["ts"] for row in rows} == {1795986062522}
    assert not any("node" in row.values for row in rows)
    assert codes(collector) == []


def test_the_kernel_is_not_read_twice(make: Callable[..., Any]) -> None:
    collector, journal, environment = make()
    codes(collector)
    environment.kernel_log_answers = True
    journal.add(XID, _TRANSPORT="kernel")
    assert codes(collector) == []
    collector, journal, environment = make(settings={"journal_units": ()})
    environment.kernel_log_answers = True
    with pytest.raises(NoData):
        collector.collect(1)


def test_reading_goes_on_after_a_restart(make: Callable[..., Any]) -> None:
    collector, journal, _ = make()
    codes(collector)
    journal.add(XID, _TRANSPORT="kernel")
    assert codes(make(journal)[0]) == ["xid:79"]


def test_a_cursor_that_is_refused_is_forgotten(make: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "journal_cursor").write_text("s=gone\n")
    collector, journal, _ = make()
    with pytest.raises(TransientError):
        collector.collect(1)
    assert codes(collector) == []
    journal.add(XID, _TRANSPORT="kernel")
    assert codes(collector) == ["xid:79"]


def test_more_entries_than_are_read_are_said(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_live, "MOST_ENTRIES", 2)
    collector, journal, _ = make()
    codes(collector)
    journal.add("a", _TRANSPORT="kernel")
    journal.add("b", _TRANSPORT="kernel")
    assert codes(collector) == ["journal:overrun"]


def test_a_machine_without_journal(tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> None:
    with pytest.raises(NoData):
        JournalCollector(environment_of(tree_of({"x": ""}), live=True)).collect(1)

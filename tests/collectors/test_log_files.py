"""Log files followed live: start at the end, rotation, truncation, restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.log_files import LogFilesCollector
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.errors import NoData

OLD, NEW = (f"Mar  3 04:11:0{n} gpu kernel: NVRM: Xid (PCI:0000:4e:00): {code}, x\n" for n, code in ((1, 79), (2, 48)))


def collector(folder: Path, pattern: str = "*.log", live: bool = True) -> LogFilesCollector:
    return LogFilesCollector(
        Environment(
            tree=FolderTree("/"),
            live=live,
            settings=AgentSettings(log_files=(str(folder / pattern),)),
            run_command=lambda words, seconds: b"",
            state_dir=str(folder),
        )
    )


def codes(reader: LogFilesCollector, now_ms: int = 1000) -> list[object]:
    return [row.values["code"] for row in reader.collect(now_ms)]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_old_lines_are_not_news(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(OLD)
    reader = collector(tmp_path)
    assert codes(reader) == []
    append(path, NEW)
    (row,) = reader.collect(5000)
    assert row.values["code"] == "xid:48"
    assert row.values["ts"] == 5000
    assert "node" not in row.values
    reader.close()


def test_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("")
    reader = collector(tmp_path)
    assert codes(reader) == []
    append(path, NEW[:30])
    assert codes(reader) == []
    append(path, NEW[30:])
    assert codes(reader) == ["xid:48"]
    reader.close()


def test_rotation_finishes_the_old_file_first(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("")
    reader = collector(tmp_path)
    assert codes(reader) == []
    append(path, OLD)
    path.rename(tmp_path / "a.log.1")
    path.write_text(NEW)
    assert codes(reader) == ["xid:79", "xid:48"]
    reader.close()


def test_truncation_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(OLD * 3)
    reader = collector(tmp_path)
    assert codes(reader) == []
    path.write_text(NEW)
    assert codes(reader) == ["xid:48"]
    reader.close()


def test_a_new_file_is_read_from_its_start(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("")
    reader = collector(tmp_path)
    assert codes(reader) == []
    (tmp_path / "b.log").write_text(NEW)
    assert codes(reader) == ["xid:48"]
    reader.close()


def test_reading_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(OLD)
    first = collector(tmp_path)
    assert codes(first) == []
    first.close()
    append(path, NEW)
    second = collector(tmp_path)
    assert codes(second) == ["xid:48"]
    second.close()


def test_a_damaged_position_file_is_survived(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OLD)
    (tmp_path / "log_positions").write_text('{"x": 1}')
    reader = collector(tmp_path)
    assert codes(reader) == []
    reader.close()


@pytest.mark.parametrize(("pattern", "live"), [("none-*.log", True), ("*.log", False)])
def test_nothing_to_follow(tmp_path: Path, pattern: str, live: bool) -> None:
    with pytest.raises(NoData):
        collector(tmp_path, pattern, live).collect(0)

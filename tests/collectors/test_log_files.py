"""Log files followed live: start at the end, rotation, truncation, restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.log_files import LogFilesCollector
from flightwatch.collectors.ownership.owners import Owner
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.errors import NoData

OLD, NEW = (f"Mar  3 04:11:0{n} gpu kernel: NVRM: Xid (PCI:0000:4e:00): {code}, x\n" for n, code in ((1, 79), (2, 48)))


STEP = (
    " iteration       10/     200 | consumed samples: 80 | elapsed time per iteration (ms): 812.5 |"
    " learning rate: 1.0E-04 | global batch size: 8 | lm loss: 2.5E+00 | grad norm: 0.9 |"
    " number of skipped iterations: 0 | number of nan iterations: 0 |\n"
)


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


def scalars(tmp_path: Path, owners: dict[int, Owner], training: bool = True) -> list[dict[str, Any]]:
    path = tmp_path / "train.log"
    path.write_text("")
    environment = Environment(
        tree=FolderTree("/"),
        live=True,
        settings=AgentSettings(
            training_log_files=(str(path),) if training else (), log_files=() if training else (str(path),)
        ),
        run_command=lambda words, seconds: b"",
    )
    environment.owners.replace(owners)
    reader = LogFilesCollector(environment)
    list(reader.collect(1))
    append(path, STEP + NEW)
    rows = list(reader.collect(5000))
    assert [row.values["code"] for row in rows if row.table == "events"] == ["xid:48"]
    reader.close()
    return [row.values for row in rows if row.table != "events"]


def test_a_training_log_gives_the_scalars_of_the_only_job(tmp_path: Path) -> None:
    found = scalars(tmp_path, {0: Owner("77", "0", None, "slurm"), 1: Owner("77", "0", None, "slurm")})
    loss = next(values for values in found if values["name"] == "loss")
    assert (loss["job"], loss["run"], loss["step"], loss["rank"], loss["value"]) == ("77", "0", 10, -1, 2.5)
    assert {values["ts"] for values in found} == {5000}


def test_scalars_without_a_certain_owner_are_left_out(tmp_path: Path) -> None:
    assert not scalars(tmp_path, {})
    assert not scalars(tmp_path, {0: Owner("77", "0", None, "slurm"), 1: Owner("78", "0", None, "slurm")})
    assert not scalars(tmp_path, {0: Owner("77", "0", None, "slurm")}, training=False)


@pytest.mark.parametrize(("pattern", "live"), [("none-*.log", True), ("*.log", False)])
def test_nothing_to_follow(tmp_path: Path, pattern: str, live: bool) -> None:
    with pytest.raises(NoData):
        collector(tmp_path, pattern, live).collect(0)

"""Data folders with any name: what is written goes there and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from flightwatch.cli import main
from flightwatch.cli.common_settings import CommonSettings, local_path, local_url
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings


@pytest.mark.parametrize("name", ["plain", "a b", "a#b", "a?b", "50%20", "数据", "x;y&z"])
def test_bus_and_control_database_go_into_the_named_folder(tmp_path: Path, name: str) -> None:
    common = CommonSettings(data_dir=str(tmp_path / name))
    assert local_path(local_url("chdb", common.data_dir, "store")) == tmp_path / name / "store"
    assert local_path(common.store_url) == tmp_path / name / "store"
    open_bus(common.bus_url).close()
    open_control(common.control_url, ControlSettings()).close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert {path.name for path in (tmp_path / name).iterdir()} >= {"bus", "control.db"}


def test_a_relative_folder_is_below_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path(CommonSettings(data_dir="data").bus_url) == tmp_path / "data" / "bus"


def test_a_folder_without_store_is_named_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "--data-dir", str(tmp_path / "a#b"), "SELECT 1"]) == 1
    assert f"there is no store at {tmp_path}/a#b/store and nothing runs there" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

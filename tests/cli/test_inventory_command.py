"""`flightwatch inventory`: what it reads, sends, refuses and says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flightwatch.cli import main
from flightwatch.core.vocabulary import ExitCode

CSV = "node,rack,slot\nn1,r1,u1\nn2,r1,u2\n"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIGHTWATCH_FLIGHTWATCH_DATA_DIR", str(tmp_path / "data"))


def put(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_dry_run_prints_rows_of_files_of_several_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [put(tmp_path, "racks.csv", CSV), put(tmp_path, "topology.conf", "SwitchName=leaf1 Nodes=n[1-2]\n")]
    assert main(["inventory", "import", "--dry-run", "--at", "2026-01-02T00:00:00Z", *paths]) == ExitCode.DONE
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["table"], line["row"].get("node")) for line in lines[:2]] == [
        ("inventory", "n1"),
        ("inventory", "n2"),
    ]
    assert {line["row"]["ts"] for line in lines} == {"2026-01-02T00:00:00.000Z"}
    assert {line["row"]["leaf_switch"] for line in lines if line["table"] == "inventory"} == {None, "leaf1"}


def test_malformed_and_unknown_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = put(tmp_path, "bad.csv", CSV + "n3,r1\n")
    assert main(["inventory", "import", "--dry-run", bad]) == ExitCode.MALFORMED
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert "line 4" in captured.err
    assert main(["inventory", "import", "--dry-run", put(tmp_path, "x", "hello\n")]) == ExitCode.UNRECOGNISED
    assert main(["inventory", "import", "--dry-run", str(tmp_path / "absent")]) == ExitCode.USAGE
    assert main(["inventory", "import", "--at", "noon", bad]) == ExitCode.USAGE
    assert main(["inventory", "diff"]) == ExitCode.USAGE


def test_import_reaches_the_bus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from flightwatch.core.clock import SystemClock
    from flightwatch.core.vocabulary import Topic
    from flightwatch.pipeline.bus.connect import open_bus
    from flightwatch.pipeline.bus.settings import BusSettings

    url = f"sqlite:///{tmp_path}/data/bus"
    bus = open_bus(url, BusSettings(), SystemClock())
    bus.create_topic(Topic.EVENTS.value, 1, None, None)
    bus.close()
    assert main(["inventory", "import", put(tmp_path, "racks.csv", CSV)]) == ExitCode.DONE
    assert capsys.readouterr().out == "sent 2 inventory rows and 0 links\n"
    bus = open_bus(url, BusSettings(), SystemClock())
    (partition,) = bus.partitions(Topic.EVENTS.value)
    assert len(bus.read(partition, bus.begin_offset(partition), 1_000_000)) == 1
    bus.close()


def test_readings_of_the_plant_are_imported_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant = put(tmp_path, "plant.csv", "ts,zone,supply_temp_c,power_kw\n2026-01-01T00:00:00Z,cdu-1,18.5,\n")
    assert main(["inventory", "import", "--dry-run", plant]) == ExitCode.DONE
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [(line["table"], line["row"]["zone"], line["row"]["value"]) for line in lines]
    assert ("facility_samples", "cdu-1", 18.5) in found
    assert {line["row"]["ts"] for line in lines} == {"2026-01-01T00:00:00.000Z"}

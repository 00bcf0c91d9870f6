"""`flightwatch inspect`: lines, summary, exit codes, escaping."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli import main
from flightwatch.cli.inspect_summary import Summary, clean, render
from flightwatch.collectors.inspect import Inspection
from flightwatch.core.protocols import Note

SAMPLES = Path(__file__).parents[1] / "collectors" / "captures"
XID = "Mar  3 04:11:09 gpu-17 kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid=1, GPU has fallen off the bus.\n"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["inspect", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    path.write_text(XID + "NVRM: Xid (invalid): x\n")
    code, out, err = run(capsys, str(path), "--at", "2026-03-04T00:00:00Z", "--node", "other")
    note, row = sorted((json.loads(line) for line in out.splitlines()), key=lambda line: "row" in line)
    assert code == 0
    assert row["source"] == note["source"] == str(path)
    assert row["table"] == "events"
    assert row["row"]["ts"] == "2026-03-03T04:11:09.000Z"
    assert row["row"]["node"] == "gpu-17"
    assert row["row"]["device"] is None
    assert note["note"]["where"] == "line 2"
    assert not err


def test_unknown_stays_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    path.write_text("[ 5.0] NVRM: Xid (PCI:0000:4e:00): 79, x\n")
    row = json.loads(run(capsys, str(path))[1])["row"]
    assert row["ts"] is None
    assert row["node"] is None


def test_json_summary(capsys: pytest.CaptureFixture[str]) -> None:
    path = SAMPLES / "logs" / "samples" / "kernel_xid.log"
    code, out, _ = run(capsys, str(path), "--summary", "--format", "json", "--at", "2026-04-01")
    summary: dict[str, Any] = json.loads(out)
    assert code == 0
    assert set(summary) == {"devices", "events", "incidents"}
    first = next(i for i in summary["incidents"] if i["root"] == "xid:48")
    assert first["consequences"] == ["xid:63", "xid:94", "xid:45", "xid:154"]
    assert (first["node"], first["device"]) == ("gpu-17", "0000:4e:00")
    assert first["first_ts"] == "2026-03-03T04:11:09.000Z"
    assert "Drain and Reset" in first["action"]
    assert {event["code"] for event in summary["events"]} >= {"xid:48", "sxid:24007"}


def test_text_summary(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(SAMPLES / "logs" / "samples" / "kernel_xid.log"), "--summary")
    assert code == 0
    assert "1 capture read" in out
    assert "root: xid:48" in out
    assert "do: drain the node" in out


def test_devices_and_their_worst_values(capsys: pytest.CaptureFixture[str]) -> None:
    path = SAMPLES / "devices" / "samples" / "nvidia_smi_q_535_mig.txt"
    summary = json.loads(run(capsys, str(path), "--summary", "--format", "json")[1])
    assert summary["devices"]
    assert all("temp_c" in device for device in summary["devices"])
    assert "Devices (" in run(capsys, str(path), "--summary")[1]


def test_nothing_found_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "quiet.log"
    path.write_text("[ 5.0] all is well\n[ 6.0] still well\n")
    assert "No incidents." in run(capsys, str(path), "--summary")[1]


def test_nan_is_written_as_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, str(SAMPLES / "logs" / "samples" / "megatron.log"))[1]
    values = [json.loads(line).get("row", {}) for line in out.splitlines()]
    assert any(row.get("name") == "loss" and math.isnan(row["value"]) for row in values)


def test_control_characters_never_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    path.write_text("NVRM: Xid (PCI:0000:4e:00): 79, name=\x1b[31mred\x7f\x9b, x\n")
    for words in ((), ("--summary",), ("--summary", "--format", "json")):
        out = run(capsys, str(path), *words)[1]
        assert not any(ord(character) < 32 and character != "\n" for character in out)
        assert "\x7f" not in out
        assert "\x9b" not in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [("=cmd()", "'=cmd()"), ("-5", "-5"), ("+x", "'+x"), ("@a", "'@a"), ("a\nb", "a\\nb"), ("plain é", "plain é")],
)
def test_cleaning(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = tmp_path / "x.bin"
    unknown.write_bytes(b"\0\1\2\3")
    code, _, err = run(capsys, str(unknown))
    assert code == 4
    assert "not recognised" in err
    broken = tmp_path / "x.jsonl"
    broken.write_text('{"node": "a", "x/y/z/steptime_a": 1.0, "x/q/w/return_code": 0}\n{"node": ')
    code, out, _ = run(capsys, str(broken))
    assert code == 3
    assert out.count('"row"') == 2
    code, out, err = run(capsys, str(tmp_path / "missing"))
    assert (code, out) == (2, "")
    assert "missing" in err
    code, _, err = run(capsys, str(broken), "--at", "yesterday")
    assert code == 2
    assert "--at yesterday" in err
    with pytest.raises(SystemExit) as stop:
        main(["inspect"])
    assert stop.value.code == 2


def test_alike_incidents_are_told_once_and_counted_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "".join(
            f"Mar  3 04:11:0{second} gpu-17 kernel: NVRM: Xid (PCI:0000:{bus}:00): 74, NVLink error\n"
            for second, bus in enumerate(("4e", "0f", "4e"))
        )
    )
    out = run(capsys, str(path), "--summary", "--at", "2026-03-04")[1]
    assert "Incidents (2 in 1 entries, alike ones together)" in out
    assert "when: 3 events, 2026-03-03T04:11:00.000Z to 2026-03-03T04:11:02.000Z" in out


def test_a_fault_told_as_event_and_as_value_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    path = SAMPLES / "devices" / "samples" / "nvidia_smi_610.xml"
    out = json.loads(run(capsys, str(path), "--summary", "--format", "json")[1])
    found = {incident["root"]: incident for incident in out["incidents"]}
    assert sorted(found) == ["remap:pending", "repair:channel_pending"]
    assert (found["remap:pending"]["count"], found["remap:pending"]["device"]) == (1, 0)
    assert "look at the message" not in {incident["action"] for incident in out["incidents"]}


NO_RAS = "$ rocm-smi --json --showrasinfo\nWARNING: No JSON data to report\n"


def test_the_summary_tells_what_a_recognised_capture_could_not_say_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(NO_RAS)
    (tmp_path / "c.txt").write_text("a letter\n")
    code, out, _ = run(capsys, str(tmp_path), "--summary")
    assert code == 0
    assert "2 captures read, 1 not recognised" in out
    assert out.count("RAS counters were not collected and are unknown, not 0") == 1
    assert "(and 1 more like it)" in out
    assert "c.txt" not in out
    form = json.loads(run(capsys, str(tmp_path), "--summary", "--format", "json")[1])
    assert set(form) == {"devices", "events", "incidents"}


def test_notes_of_the_summary_are_few_and_errors_come_first() -> None:
    summary, inspection = Summary(), Inspection()
    inspection.recognised["x"] = 1
    summary.notes = [("a", Note("warning", "", f"odd {number}")) for number in range(12)]
    summary.notes.append(("b", Note("error", "line 3", "broken")))
    lines = render(summary, inspection)
    told = lines[lines.index("Notes on the captures:") + 1 :]
    assert told[0] == "  ERROR  b, line 3: broken"
    assert len(told) == 11
    assert told[-1] == "  and 3 more"


def test_when_nothing_was_recognised_nothing_is_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown, empty, folder = tmp_path / "x.txt", tmp_path / "empty.txt", tmp_path / "folder"
    unknown.write_text("a letter\n")
    empty.touch()
    folder.mkdir()
    for path, said in (
        (unknown, "not recognised"),
        (empty, "the file is empty"),
        (folder, "the folder holds no files"),
    ):
        code, out, err = run(capsys, str(path), "--summary")
        assert code == 4
        assert "No incidents." not in out
        assert "Nothing was recognised, so nothing can be said." in out
        assert said in err
        assert err.count("\n") == 1
    assert "1 not recognised (1 empty)" in run(capsys, str(empty), "--summary")[1]

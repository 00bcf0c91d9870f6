"""Shell sessions and bug reports: every part is read as a capture of its own."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from flightwatch.collectors.captures import transcript
from flightwatch.collectors.inspect import Inspection
from flightwatch.core.protocols import Note, Row
from flightwatch.core.vocabulary import ExitCode

DMON = """# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz
    0    410     61     70     99     40      0      0      0      0   2619   1755
"""
CSV = "index, name, temperature.gpu, power.draw [W]\n0, NVIDIA H100 80GB HBM3, 61, 411.50 W\n"
XID = "[   12.5] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n"
RDMA = '[{"ifname":"mlx5_0","port":1,"rx_write_requests":5,"out_of_sequence":2}]\n'


def read(path: Path) -> tuple[dict[str, list[Row]], list[Note], ExitCode]:
    inspection = Inspection()
    rows: dict[str, list[Row]] = {}
    notes: list[Note] = []
    for item in inspection.run([str(path)]):
        if isinstance(item.what, Row):
            rows.setdefault(item.source.rpartition("/")[2], []).append(item.what)
        else:
            notes.append(item.what)
    return rows, notes, inspection.exit_code


def test_a_shell_session_is_read_part_by_part(tmp_path: Path) -> None:
    text = (
        f"root@gpu-17:~# nvidia-smi dmon -c 1\n{DMON}root@gpu-17:~# nvidia-smi --query-gpu=index,name --format=csv\n"
        f"{CSV}\n[ops@gpu-17 ~]$ rdma statistic -j\n{RDMA}[ops@gpu-17 ~]$ sudo dmesg | tail\n{XID}[ops@gpu-17 ~]$ \n"
    )
    path = tmp_path / "session.txt"
    path.write_text(text)
    rows, notes, code = read(path)
    assert code is ExitCode.DONE
    assert not [note for note in notes if note.level == "error"]
    first = rows["session.txt!nvidia-smi dmon -c 1"][0].values
    second = next(row.values for row in rows["session.txt!nvidia-smi --query-gpu=index,name --format=csv"])
    assert (first["power_w"], second["power_w"], second["temp_c"]) == (410.0, 411.5, 61.0)
    assert rows["session.txt!rdma statistic -j"][0].values["out_of_sequence_total"] == 2
    assert rows["session.txt!sudo dmesg | tail"][0].values["code"] == "xid:79"


@pytest.mark.parametrize(
    "line",
    ["$ nvidia-smi dmon", "# nvidia-smi dmon -c 1", "nvidia-smi dmon -c 1", "+ nvidia-smi dmon", "# $ nvidia-smi dmon",
     "/usr/bin/nvidia-smi dmon -s pucvmet", "===== nvidia-smi dmon =====", "(base) me@host:/tmp$ x", "PS C:\\Users> x"],
)  # fmt: skip
def test_command_lines_of_every_style(line: str, tmp_path: Path) -> None:
    path = tmp_path / "capture.txt"
    path.write_text(f"{line}\r\n{DMON}")
    rows, notes, code = read(path)
    assert code is ExitCode.DONE
    assert not [note for note in notes if note.level == "error"]
    assert sum(len(found) for found in rows.values()) == 1


@pytest.mark.parametrize(
    "line",
    ["nvidia-smi has failed because it could not talk to the driver", "# HELP nvidia_smi_up is the exporter up",
     "mx-smi  version: 2.2.9", "2024-01-01 10:00:00 root@host: dmesg $ 3", "step 10 | loss 2.5 $", "| nvidia-smi |",
     "LustreError: 11-0: 10.0.0.3@o2ib # 5"],
)  # fmt: skip
def test_lines_that_only_look_like_commands(line: str) -> None:
    assert not transcript.holds_commands(line.encode() + b"\n")


def test_rules_and_headings_of_a_bug_report_are_nobodys_output(tmp_path: Path) -> None:
    rule = "_" * 44
    path = tmp_path / "bug-report.log"
    path.write_text(
        f"{rule}\n\nStart of the report\n{rule}\n\n/usr/bin/nvidia-smi dmon -c 1\n\n{DMON}{rule}\n\n"
        f"#####################\n# kernel log\n# $ dmesg\n#####################\n{XID}{rule}\n"
    )
    rows, notes, code = read(path)
    assert code is ExitCode.DONE
    assert not [note for note in notes if note.level == "error"]
    assert sorted(rows) == ["bug-report.log!dmesg", "bug-report.log!nvidia-smi dmon -c 1"]


def test_files_and_logs_in_a_bug_report_are_parts_of_their_own(tmp_path: Path) -> None:
    rule = "_" * 44
    path = tmp_path / "bug-report.log"
    path.write_text(
        f"{rule}\n\n/usr/bin/nvidia-smi dmon\n\n{DMON}{rule}\n\nScanning kernel log files:\n\n  journalctl:\n{XID}"
        f"{rule}\n\n*** /var/log/kern.log\n*** ls: -rw-r----- 1 syslog adm 10 /var/log/kern.log\n{XID}{rule}\n"
    )
    rows, notes, code = read(path)
    assert code is ExitCode.DONE
    assert not [note for note in notes if note.level == "error"]
    assert {source: len(found) for source, found in rows.items()} == {
        "bug-report.log": 1, "bug-report.log!nvidia-smi dmon": 1, "kern.log": 1,
    }  # fmt: skip


def test_the_same_command_twice_gives_two_sources(tmp_path: Path) -> None:
    path = tmp_path / "twice.txt"
    path.write_text(f"$ nvidia-smi dmon\n{DMON}$ nvidia-smi dmon\n{DMON}")
    assert sorted(read(path)[0]) == ["twice.txt!nvidia-smi dmon", "twice.txt!nvidia-smi dmon#2"]


def test_what_was_not_read_of_a_part_is_skipped_and_long_lines_are_kept() -> None:
    text = b"before\n$ dmesg\n" + b"x" * 300_000 + b"\nlast\n$ nvidia-smi\nafter"
    found = [(title, part.read(7)) for title, part in transcript.parts(io.BytesIO(text))]
    assert found == [("", b"before\n"), ("dmesg", b"xxxxxxx"), ("nvidia-smi", b"after")]
    whole = {title: len(part.read()) for title, part in transcript.parts(io.BytesIO(text))}
    assert whole == {"": 7, "dmesg": 300_006, "nvidia-smi": 5}


def test_looking_for_commands_takes_linear_time() -> None:
    hostile = [b"a@b:" + b"c" * 65_000, b"# " * 32_000, b"=" * 65_000, b"[a@b " * 13_000, b"nvidia-smi -" * 5_000,
               b"nvidia-smi" + b" -a" * 20_000 + b"!", b"$ /" * 20_000]  # fmt: skip
    start = time.process_time()
    for text in hostile:
        transcript.holds_commands(text)
        transcript.holds_commands(b"\n".join(text[i : i + 900] for i in range(0, len(text), 900)))
    assert time.process_time() - start < 5.0

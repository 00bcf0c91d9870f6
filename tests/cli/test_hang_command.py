"""`flightwatch hang`: one object, exit codes, damaged dumps, a large job."""

from __future__ import annotations

import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli import main

KEYS = {
    "verdict", "root_ranks", "suspects", "process_group", "op", "seq", "since", "waiting", "no_log", "stack",
    "confidence", "sentence",
}  # fmt: skip


def dump(world: list[int], seq: int, *, pending: bool, group: str = "0") -> bytes:
    entry = {
        "record_id": 1, "pg_id": 0, "process_group": (group, "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1_758_610_505_947_721_376, "input_sizes": [[4]],
        "input_dtypes": ["Float"], "state": "scheduled" if pending else "completed", "retired": not pending,
        "is_p2p": False, "frames": [],
    }  # fmt: skip
    config = {group: {"name": group, "desc": "default_pg", "ranks": str(world)}}
    return pickle.dumps({"version": "2.9", "pg_config": config, "pg_status": {}, "entries": [entry]}, protocol=2)


def write(folder: Path, world: int, late: int) -> None:
    ranks = list(range(world))
    for rank in ranks:
        (folder / f"_dump_{rank}").write_bytes(dump(ranks, 6 if rank == late else 7, pending=rank != late))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = main(["hang", *words])
    answer = capsys.readouterr()
    return code, json.loads(answer.out), answer.err


def test_a_folder_and_an_archive_give_the_same_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    write(folder, 4, late=2)
    (folder / "README.txt").write_text("Fault ranks: [0]\nMissing Ranks 3\n")
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(folder, "dumps")
    code, answer, _ = run(capsys, str(folder))
    assert (code, set(answer), answer["verdict"], answer["root_ranks"]) == (0, KEYS, "missing_rank", [2])
    assert answer["since"] == "2025-09-23T06:55:05.947Z"
    assert run(capsys, str(tmp_path / "all.tar.gz"))[1] == answer


def test_a_damaged_dump_is_exit_3_and_its_rank_counts_as_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 4, late=2)
    (tmp_path / "_dump_2").write_bytes((tmp_path / "_dump_2").read_bytes()[:-30])
    code, answer, err = run(capsys, str(tmp_path))
    assert (code, answer["verdict"], answer["root_ranks"], answer["no_log"]) == (3, "missing_rank", [2], [2])
    assert "_dump_2" in err
    assert "cut" in err
    assert "Traceback" not in err


def test_nothing_recognised_is_exit_4_and_a_missing_path_is_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see\n")
    assert run(capsys, str(tmp_path))[0] == 4
    assert main(["hang", str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err


def test_finished_everywhere_is_not_hung(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        (tmp_path / f"_dump_{rank}").write_bytes(dump([0, 1, 2, 3], 7, pending=False))
    code, answer, _ = run(capsys, str(tmp_path))
    assert (code, answer["verdict"], answer["root_ranks"]) == (0, "not_hung", [])


def test_two_thousand_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 2000, late=1234)
    code, answer, _ = run(capsys, str(tmp_path))
    assert (code, answer["root_ranks"], len(answer["waiting"])) == (0, [1234], 1999)
    assert len(answer["sentence"]) < 300

"""Published hangs against their right answers (skipped where the recorded inputs are absent)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli import main

FOLDER = Path(__file__).parents[3] / "shared" / "inputs" / "g_hang"
pytestmark = [
    pytest.mark.inputs,
    pytest.mark.skipif(not FOLDER.is_dir(), reason=f"recorded inputs are not beside the checkout ({FOLDER.parts[-3]})"),
]


def verdict(capsys: pytest.CaptureFixture[str], *paths: Path) -> tuple[int, dict[str, Any]]:
    code = main(["hang", *map(str, paths)])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


@pytest.mark.parametrize(("name", "roots"), [("gpu_error_1st", [12, 14]), ("lock_gil_1st", [9, 14])])
def test_root_ranks_of_injected_faults(
    name: str, roots: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The injection log and the reference hold the answer: only the dumps are unpacked.
    with tarfile.open(FOLDER / f"fr_dumps_{name}.tar.gz") as archive:
        for member in archive.getmembers():
            if "_dump_" in member.name:
                archive.extract(member, tmp_path, filter="data")
    for path in (tmp_path, FOLDER / f"fr_dumps_{name}.tar.gz"):
        code, answer = verdict(capsys, path)
        assert (code, answer["verdict"], answer["root_ranks"]) == (0, "missing_rank", roots)
        assert answer["op"] == "all_to_all"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("watchdog_rank7_behind.log", {"verdict": "missing_rank", "root_ranks": [7]}),
        ("watchdog_stuck_heartbeat.log", {"verdict": "host_stuck", "root_ranks": [6]}),
        ("pyspy_rank0_dataloader.txt", {"verdict": "input_stall", "root_ranks": [0]}),
        ("rocm_hw_exception_gpu_hang.log", {"verdict": "device_error"}),
        ("bloom_gpu_crash_cudaerror.log", {"verdict": "device_error"}),
        ("nccl_info_init_64ranks.log", {"verdict": "transfer_stuck", "root_ranks": []}),
        ("watchdog_all_same_seq_8gpu.log", {"verdict": "undetermined", "root_ranks": [], "seq": 1580}),
        ("watchdog_newformat_2.6_rank118.log", {"verdict": "undetermined", "waiting": [118], "seq": 2398459}),
        ("watchdog_v100_torch1x.log", {"verdict": "undetermined", "waiting": [1, 2, 3, 6, 7], "seq": 469508}),
        ("hccl_watchdog_workhccl.log", {"verdict": "undetermined", "waiting": [0, 1], "seq": 196}),
    ],
)
def test_logs(name: str, expected: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = verdict(capsys, FOLDER / name)
    assert {key: answer[key] for key in expected} == expected
    assert code == (4 if expected["verdict"] == "undetermined" else 0)


def test_ras_names_the_ranks_ahead_and_we_do_not_blame_them(capsys: pytest.CaptureFixture[str]) -> None:
    _, answer = verdict(capsys, FOLDER / "ncclras_mismatch_two_ahead.txt")
    assert answer["waiting"] == [12, 13]
    assert not {12, 13} & set(answer["root_ranks"])
    assert not {12, 13} & {one["rank"] for one in answer["suspects"]}


def test_missing_ranks_of_the_log_are_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    _, answer = verdict(capsys, FOLDER / "watchdog_all_same_seq_8gpu.log")
    assert answer["waiting"] == [0, 3, 4]
    assert {1, 2} <= set(answer["no_log"])

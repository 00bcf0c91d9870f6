"""Traces as the profiler page shows them."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from flightwatch.core.errors import ConfigError, NotFound
from flightwatch.dashboard.components import traces
from flightwatch.dashboard.pages.profiler import ranks_of
from tests.dashboard.page_kit import trace_of


def read(folder: Path, rank: int, gemm_us: float) -> traces.Trace:
    path = folder / f"rank{rank}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace_of(rank, gemm_us)).encode()))
    return traces.read_trace(str(path), f"{rank}-{gemm_us}", rank)


def floats(frames: dict[str, object], name: str) -> list[float]:
    kind = "<i4" if name == "parent" else "<f4"
    return [float(value) for value in np.frombuffer(base64.b64decode(str(frames[name])), dtype=kind)]


def test_frames_are_a_tree_whose_parents_come_first(tmp_path: Path) -> None:
    frames = traces.frames(read(tmp_path, 3, 100.0))
    parents, totals = floats(frames, "parent"), floats(frames, "total")
    assert frames["names"][0] in ("host", "device")
    assert all(parent < index for index, parent in enumerate(parents))
    for index, parent in enumerate(parents):
        assert parent < 0 or totals[int(parent)] >= totals[index]
    # The steps of a trace fall on one another.
    assert frames["names"].count("ProfilerStep") == 1
    linear = frames["names"].index("aten::linear")
    assert totals[linear] == pytest.approx(300.0)


def test_a_difference_is_signed_and_a_frame_of_one_side_alone_is_told(tmp_path: Path) -> None:
    mine, peer = read(tmp_path, 5, 150.0), read(tmp_path, 4, 100.0)
    frames = traces.frames(mine, peer)
    delta = dict(zip(frames["names"], floats(frames, "delta"), strict=True))
    assert delta["gemm_bf16"] == pytest.approx(1 / 3, abs=1e-3)
    assert delta["ncclDevKernel_AllReduce"] == pytest.approx(0.0, abs=1e-6)
    alone = traces.frames(mine, traces.Trace(4, {("host",): 1.0}, [], []))
    assert np.isnan(dict(zip(alone["names"], floats(alone, "delta"), strict=True))["gemm_bf16"])


def test_ops_across_ranks_and_what_changed(tmp_path: Path) -> None:
    mine, peer = read(tmp_path, 5, 150.0), read(tmp_path, 4, 100.0)
    top = {row["op"]: row for row in traces.top_ops([mine, peer], 10)}
    assert top["gemm_bf16"]["ranks"] == pytest.approx({5: 450.0, 4: 300.0})
    changed = traces.changed_ops(mine, peer, 5)
    assert changed[0]["delta_us"] == pytest.approx(150.0)


def test_a_trace_that_is_not_here_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="rank 7 is not on this machine"):
        traces.read_trace(str(tmp_path / "none.json.gz"), "", 7)
    (tmp_path / "link.json.gz").symlink_to("/etc/passwd")
    with pytest.raises(NotFound):
        traces.read_trace(str(tmp_path / "link.json.gz"), "", 7)


def test_ranks_as_people_write_them() -> None:
    assert ranks_of("3, 7-9,3") == [3, 7, 8, 9]
    for text in ("", "x", "9-7", "1-", "-1", "1;2"):
        with pytest.raises(ConfigError):
            ranks_of(text)
    assert len(ranks_of("0-9999999")) <= 66

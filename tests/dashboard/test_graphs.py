"""The one chart factory."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from flightwatch.dashboard.components import graphs


def unpacked(values: Any) -> list[Any]:
    """Return what plotly.js reads from a typed array; a gap is None."""
    array = np.frombuffer(base64.b64decode(values["bdata"]), dtype=f"<{values['dtype']}")
    if "shape" in values:
        array = array.reshape([int(size) for size in values["shape"].split(",")])
    return _gaps(array.tolist())


def _gaps(values: list[Any]) -> list[Any]:
    return [_gaps(one) if isinstance(one, list) else None if math.isnan(one) else one for one in values]


def test_a_gap_stays_a_gap() -> None:
    trace = graphs.lines({"a": ([1, 2, 3], [1.0, None, 3.0])}, unit="C")["data"][0]
    assert unpacked(trace["y"]) == [1.0, None, 3.0]
    assert trace["connectgaps"] is False


def test_nothing_measured_is_said_and_no_axis_pretends_otherwise() -> None:
    layout = graphs.lines({"a": ([1, 2], [None, None])}, unit="C", empty_text="No sensor")["layout"]
    assert layout["annotations"][0]["text"] == "No sensor"
    assert layout["yaxis"]["visible"] is False


def test_no_chart_offers_an_outside_server() -> None:
    config = graphs.graph("x").config
    assert config["plotlyServerURL"] == ""
    assert config["showSendToCloud"] is False
    assert config["displayModeBar"] is False


def test_one_rank_alone_is_seen_in_a_density() -> None:
    figure = graphs.density([1, 2], [10.0, 20.0], [[50, 50], [0, 1]], unit="ms", x_title="")
    drawn = figure["data"][0]
    seen = unpacked(drawn["z"])
    assert seen[1][0] is None
    # The smallest count is not the colour of nothing.
    assert drawn["zmin"] == 0
    assert seen[1][1] > 0
    assert unpacked(drawn["customdata"])[1] == [0, 1]


def test_strips_share_their_time_and_their_marks() -> None:
    charts = [graphs.Strip("A", "C", {"a": ([1, 2], [1.0, 2.0]), "b": ([1, 2], [None, 3.0])}, strong="b"),
              graphs.Strip("B", "W", {"a": ([1, 2], [5.0, None])})]  # fmt: skip
    figure = graphs.strips(charts, (1, 2), [graphs.Mark(1.5, "slow", "P2")])
    assert [trace["yaxis"] for trace in figure["data"]] == ["y", "y", "y2"]
    # The one that matters is drawn over its peers.
    assert [trace["name"] for trace in figure["data"]] == ["a", "b", "a"]
    assert figure["data"][0]["opacity"] < 1
    layout = figure["layout"]
    assert layout["shapes"][0]["yref"] == "paper"
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]


def test_every_figure_is_one_that_plotly_knows() -> None:
    import plotly.graph_objects as go

    strip = graphs.Strip("A", "C", {"a": ([1, 2], [1.0, 2.0]), "b": ([1, 2], [None, 3.0])}, strong="b")
    for figure in (
        graphs.lines({"a": ([1, 2], [1.0, None])}, unit="C", empty_text="none", axis="linear"),
        graphs.lines({}, unit="", empty_text="none"),
        graphs.areas({"x": ([1, 2], [1.0, 2.0])}, unit="ms"),
        graphs.strips([strip, strip], (1, 2), [graphs.Mark(1.5, "slow", "P2")]),
        graphs.strips([strip] * 11),
        graphs.density([1, 2], [10.0, 20.0], [[50, 50], [0, 1]], unit="ms", x_title=""),
        graphs.bars(["s0"], {"x": [1.0]}, unit="ms"),
    ):
        assert go.Figure(figure).to_plotly_json()["data"] is not None


def test_parts_are_stacked_and_bars_have_their_names() -> None:
    figure = graphs.areas({"x": ([1, 2], [1.0, 2.0]), "y": ([1, 2], [3.0, None])}, unit="ms")
    assert {trace["stackgroup"] for trace in figure["data"]} == {"whole"}
    assert graphs.bars(["s0", "s1"], {"x": [1.0, 2.0]}, unit="ms")["data"][0]["x"] == ["s0", "s1"]

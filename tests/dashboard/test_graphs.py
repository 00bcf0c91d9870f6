"""The one chart factory."""

from __future__ import annotations

from flightwatch.dashboard.components import graphs


def test_a_gap_stays_a_gap() -> None:
    figure = graphs.lines({"a": ([1, 2, 3], [1.0, None, 3.0])}, unit="C")
    assert list(figure.data[0].y) == [1.0, None, 3.0]
    assert figure.data[0].connectgaps is False


def test_nothing_measured_is_said_and_no_axis_pretends_otherwise() -> None:
    figure = graphs.lines({"a": ([1, 2], [None, None])}, unit="C", empty_text="No sensor")
    assert figure.layout.annotations[0].text == "No sensor"
    assert figure.layout.yaxis.visible is False


def test_no_chart_offers_an_outside_server() -> None:
    config = graphs.graph("x").config
    assert config["plotlyServerURL"] == ""
    assert config["showSendToCloud"] is False
    assert config["displayModeBar"] is False


def test_one_rank_alone_is_seen_in_a_density() -> None:
    figure = graphs.density([1, 2], [10.0, 20.0], [[50, 50], [0, 1]], unit="ms", x_title="")
    drawn = figure.data[0]
    assert drawn.z[1][0] is None
    # The smallest count is not the colour of nothing.
    assert drawn.zmin == 0
    assert drawn.z[1][1] > 0
    assert list(drawn.customdata[1]) == [0, 1]


def test_strips_share_their_time_and_their_marks() -> None:
    charts = [graphs.Strip("A", "C", {"a": ([1, 2], [1.0, 2.0]), "b": ([1, 2], [None, 3.0])}, strong="b"),
              graphs.Strip("B", "W", {"a": ([1, 2], [5.0, None])})]  # fmt: skip
    figure = graphs.strips(charts, (1, 2), [graphs.Mark(1.5, "slow", "P2")])
    assert [trace.yaxis for trace in figure.data] == ["y", "y", "y2"]
    # The one that matters is drawn over its peers.
    assert [trace.name for trace in figure.data] == ["a", "b", "a"]
    assert figure.data[0].opacity < 1
    assert figure.layout.shapes[0].yref == "paper"
    assert figure.layout.yaxis.domain[0] > figure.layout.yaxis2.domain[1]


def test_parts_are_stacked_and_bars_have_their_names() -> None:
    figure = graphs.areas({"x": ([1, 2], [1.0, 2.0]), "y": ([1, 2], [3.0, None])}, unit="ms")
    assert {trace.stackgroup for trace in figure.data} == {"whole"}
    assert list(graphs.bars(["s0", "s1"], {"x": [1.0, 2.0]}, unit="ms").data[0].x) == ["s0", "s1"]

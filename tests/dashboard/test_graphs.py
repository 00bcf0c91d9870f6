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

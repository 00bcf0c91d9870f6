"""The one factory of charts: same look everywhere, and no button that calls another server.

Ink and grid take their colours from the style sheet, so that a change of theme redraws nothing. Figures are plain
dictionaries with packed numbers: plotly's own figure objects check and copy every value several times, which took ten
times as long as reading them from the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import dcc

from flightwatch.dashboard.components.packing import along, packed_array, told

#: Colour-blind safe, readable on light and dark; the first is the series that matters.
PALETTE = ("#3d83f0", "#e07f1f", "#22a57a", "#c25aa2", "#a08026", "#7d8898", "#d5533f", "#1aa0bb")
QUIET = "#8b95a3"
MARK = {
    "critical": "#e5484d",
    "error": "#f08c2e",
    "warning": "#d9b032",
    "P1": "#e5484d",
    "P2": "#f08c2e",
    "P3": "#d9b032",
}
DENSITY = [
    [0, "rgba(47,111,222,0)"],
    [0.02, "#234a86"],
    [0.25, "#2f7cbb"],
    [0.5, "#3fb0a5"],
    [0.8, "#e8c35a"],
    [1, "#fff3c4"],
]

#: plotly's mode bar can offer to upload the chart to its makers: never here.
CONFIG: Mapping[str, Any] = {
    "displaylogo": False,
    "displayModeBar": False,
    "showSendToCloud": False,
    "showEditInChartStudio": False,
    "plotlyServerURL": "",
    "responsive": True,
    "scrollZoom": False,
}

#: With a unit beside it a number is written out: 12,000 ms, not 12k ms.
_PLAIN: Mapping[str, Any] = {"separatethousands": True, "exponentformat": "none"}
_GRID = "rgba(128,128,128,.28)"
#: name to (times, values); None or NaN in values is a gap, never a zero. Arrays are the fastest.
Series = Mapping[str, tuple[Any, Any]]
#: A figure as plotly's script takes it.
Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment drawn across a chart: time as the chart has it, words, and a key of MARK."""

    at: Any
    words: str
    tone: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One of several charts over the same time.

    Attributes
    ----------
    title, unit: shown at its left and in the hover text.
    series: what it draws. strong: the series drawn in colour when the others are only its peers.
    zero: its axis starts at 0.
    """

    title: str
    unit: str
    series: Series
    strong: str | None = None
    zero: bool = False


def graph(graph_id: str, *, height_px: int = 220) -> dcc.Graph:
    """Return an empty chart to be filled by a callback; a drag over its time chooses the page's range."""
    return dcc.Graph(
        id=graph_id,
        figure=lines({}, unit=""),
        config=dict(CONFIG),
        style={"height": f"{height_px}px"},
        className="fw-chart fw-brush",
    )


def drawn(figure: Figure, height_px: int) -> dcc.Graph:
    """Return a chart of a figure that is ready."""
    return dcc.Graph(figure=figure, config=dict(CONFIG), style={"height": f"{height_px}px"}, className="fw-chart")


def lines(
    series: Series,
    *,
    unit: str,
    zero: bool = True,
    empty_text: str = "",
    strong: str | None = None,
    axis: str = "date",
    marks: Sequence[Mark] = (),
) -> Figure:
    """Draw values over time, or over steps.

    Parameters
    ----------
    unit: shown on the axis and in the hover text.
    zero: the axis starts at 0.
    empty_text: what to say when there is no value at all.
    strong: the one series in colour; the others are its peers.
    axis: what they are drawn over: "date", "linear" (steps) or "category".
    """
    layout = _layout(legend=len(series) > 1 and strong is None)
    layout["xaxis"] = {"zeroline": False, "type": axis, "gridcolor": _GRID}
    layout["yaxis"] = _value_axis(unit) | {"rangemode": "tozero" if zero else "normal"}
    _mark(layout, marks)
    if empty_text and not any(told(values) for _, values in series.values()):
        layout["annotations"].append(
            {"text": empty_text, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
        )
        layout["xaxis"]["visible"] = layout["yaxis"]["visible"] = False
    return {"data": _traces(Strip("", unit, series, strong)), "layout": layout}


def areas(series: Series, *, unit: str, empty_text: str = "") -> Figure:
    """Draw values over time on top of one another: parts of a whole."""
    figure = lines(series, unit=unit, empty_text=empty_text)
    for index, trace in enumerate(figure["data"]):
        colour = PALETTE[index % len(PALETTE)]
        trace |= {"stackgroup": "whole", "line": {"width": 0.6, "color": colour}, "fillcolor": _faded(colour)}
    return figure


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.55)"


def strips(charts: Sequence[Strip], window: tuple[Any, Any] | None = None, marks: Sequence[Mark] = ()) -> Figure:
    """Draw several charts below one another over one axis of time, with the same marks through all."""
    layout = _layout(legend=False)
    layout["margin"] = {"l": 70, "r": 14, "t": 22, "b": 40}
    layout["xaxis"] = {"anchor": "free", "position": 0.0, "type": "date", "gridcolor": _GRID}
    if window:
        layout["xaxis"]["range"] = list(window)
    traces: list[dict[str, Any]] = []
    share = 1 / max(1, len(charts))
    for index, chart in enumerate(charts):
        axis = "" if index == 0 else str(index + 1)
        top = 1 - index * share
        traces += [trace | {"yaxis": f"y{axis}"} for trace in _traces(chart)]
        layout[f"yaxis{axis}"] = {
            "domain": [max(0.0, top - share * 0.86), top],
            "title": {"text": f"{chart.title}<br>{chart.unit or ' '}", "font": {"size": 11}},
            "gridcolor": _GRID,
            "zeroline": False,
            "rangemode": "tozero" if chart.zero else "normal",
            "nticks": 4,
            "automargin": True,
            **_PLAIN,
        }
    _mark(layout, marks)
    return {"data": traces, "layout": layout}


def density(columns: Sequence[Any], edges: Sequence[float], counts: Any, *, unit: str, x_title: str) -> Figure:
    """Draw how many fall into each bin of value, column by column; counts are shown by their logarithm.

    Parameters
    ----------
    counts: [bins, columns]; nothing is drawn where nothing fell.
    edges: middle of each bin.
    """
    many = np.asarray(counts, dtype=np.float64)
    trace = {
        "type": "heatmap",
        "x": list(columns),
        "y": list(edges),
        "z": packed_array(np.where(many > 0, np.log10(many + 1), np.nan)),
        "customdata": packed_array(many.astype(np.int32)),
        "colorscale": DENSITY,
        "zmin": 0,
        "showscale": False,
        "hovertemplate": f"{x_title} %{{x}}<br>%{{y:.4~g}} {unit}<br>%{{customdata}}<extra></extra>",
        "hoverongaps": False,
    }
    layout = _layout(legend=False) | {"hovermode": "closest"}
    layout["margin"]["b"] = 40
    layout["xaxis"] = {"title": {"text": x_title, "standoff": 4}, "gridcolor": _GRID, "zeroline": False}
    layout["yaxis"] = _value_axis(unit)
    return {"data": [trace], "layout": layout}


def bars(names: Sequence[str], series: Mapping[str, Sequence[Any]], *, unit: str, stacked: bool = True) -> Figure:
    """Draw bars, one group a name."""
    traces = [
        {
            "type": "bar",
            "x": list(names),
            "y": list(values),
            "name": name,
            "marker": {"color": PALETTE[i % len(PALETTE)], "line": {"width": 0}},
            "hovertemplate": f"%{{y:.4~g}} {unit}<extra>{name}</extra>",
        }
        for i, (name, values) in enumerate(series.items())
    ]
    layout = _layout(legend=len(series) > 1) | {"barmode": "stack" if stacked else "group", "bargap": 0.25}
    layout["xaxis"] = {"type": "category", "automargin": True}
    layout["yaxis"] = _value_axis(unit)
    return {"data": traces, "layout": layout}


def _traces(chart: Strip) -> list[dict[str, Any]]:
    traces = []
    names = [name for name in chart.series if name != chart.strong]
    if chart.strong is not None and chart.strong in chart.series:
        names.append(chart.strong)
    for index, name in enumerate(names):
        peer = chart.strong is not None and name != chart.strong
        colour = QUIET if peer else PALETTE[0 if chart.strong else index % len(PALETTE)]
        trace = {
            "type": "scatter",
            **along(*chart.series[name]),
            "name": name,
            "mode": "lines",
            "connectgaps": False,
            "opacity": 0.45 if peer else 1,
            "line": {"width": 1 if peer else 1.7, "color": colour},
            "hovertemplate": f"%{{y:.4~g}} {chart.unit}<extra>{name}</extra>",
        }
        if peer and len(names) > 12:
            trace["hoverinfo"] = "skip"
        traces.append(trace)
    return traces


def _value_axis(unit: str) -> dict[str, Any]:
    axis = {"ticksuffix": f" {unit}" if unit else "", "gridcolor": _GRID, "zeroline": False, "automargin": True}
    return {**axis, **_PLAIN} if unit else axis


def _layout(*, legend: bool) -> dict[str, Any]:
    return {
        "margin": {"l": 56, "r": 12, "t": 24 if legend else 8, "b": 36},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "inherit", "size": 12, "color": QUIET},
        "hovermode": "x unified",
        "showlegend": legend,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "font": {"size": 11}},
        "uirevision": "keep",
        "dragmode": False,
        "shapes": [],
        "annotations": [],
    }


def _mark(layout: dict[str, Any], marks: Sequence[Mark]) -> None:
    for mark in marks:
        colour = MARK.get(mark.tone, PALETTE[0])
        layout["shapes"].append(
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": mark.at,
                "x1": mark.at,
                "y0": 0,
                "y1": 1,
                "line": {"color": colour, "width": 1.2, "dash": "dot"},
            }
        )
        if mark.words:
            layout["annotations"].append(
                {
                    "x": mark.at,
                    "y": 1,
                    "xref": "x",
                    "yref": "paper",
                    "text": mark.words,
                    "showarrow": False,
                    "yanchor": "bottom",
                    "font": {"size": 10, "color": colour},
                }
            )

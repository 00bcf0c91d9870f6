"""The one factory of charts: same look everywhere, and no button that calls another server.

Ink and grid take their colours from the style sheet, so that a change of theme redraws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from dash import dcc

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

#: name to (times, values); None in values is a gap, never a zero.
Series = Mapping[str, tuple[Sequence[Any], Sequence[float | None]]]


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
    """Return an empty chart to be filled by a callback."""
    return dcc.Graph(
        id=graph_id,
        figure=lines({}, unit=""),
        config=dict(CONFIG),
        style={"height": f"{height_px}px"},
        className="fw-chart",
    )


def drawn(figure: go.Figure, height_px: int) -> dcc.Graph:
    """Return a chart of a figure that is ready."""
    return dcc.Graph(figure=figure, config=dict(CONFIG), style={"height": f"{height_px}px"}, className="fw-chart")


def lines(
    series: Series,
    *,
    unit: str,
    zero: bool = True,
    empty_text: str = "",
    strong: str | None = None,
    dates: bool = True,
    marks: Sequence[Mark] = (),
) -> go.Figure:
    """Draw values over time, or over steps.

    Parameters
    ----------
    unit: shown on the axis and in the hover text.
    zero: the axis starts at 0.
    empty_text: what to say when there is no value at all.
    strong: the one series in colour; the others are its peers.
    dates: the axis is time.
    """
    figure = go.Figure(_traces(Strip("", unit, series, strong)))
    _dress(figure, legend=len(series) > 1 and strong is None)
    figure.update_xaxes(zeroline=False, type="date" if dates else "linear", gridcolor="rgba(128,128,128,.28)")
    figure.update_yaxes(
        gridcolor="rgba(128,128,128,.28)",
        zeroline=False,
        ticksuffix=f" {unit}" if unit else "",
        rangemode="tozero" if zero else "normal",
        automargin=True,
    )
    _mark(figure, marks)
    if empty_text and not any(value is not None for _, values in series.values() for value in values):
        figure.add_annotation(text=empty_text, showarrow=False, xref="paper", yref="paper", x=0.5, y=0.5)
        figure.update_xaxes(visible=False)
        figure.update_yaxes(visible=False)
    return figure


def areas(series: Series, *, unit: str, empty_text: str = "") -> go.Figure:
    """Draw values over time on top of one another: parts of a whole."""
    figure = lines(series, unit=unit, empty_text=empty_text)
    for index, trace in enumerate(figure.data):
        colour = PALETTE[index % len(PALETTE)]
        trace.update(stackgroup="whole", line={"width": 0.6, "color": colour}, fillcolor=_faded(colour))
    return figure


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.55)"


def strips(charts: Sequence[Strip], window: tuple[Any, Any] | None = None, marks: Sequence[Mark] = ()) -> go.Figure:
    """Draw several charts below one another over one axis of time, with the same marks through all."""
    figure = go.Figure()
    share = 1 / max(1, len(charts))
    for index, chart in enumerate(charts):
        axis = "" if index == 0 else str(index + 1)
        top = 1 - index * share
        for trace in _traces(chart):
            trace.update(yaxis=f"y{axis}")
            figure.add_trace(trace)
        figure.update_layout(
            {
                f"yaxis{axis}": {
                    "domain": [top - share * 0.86, top],
                    "title": {"text": f"{chart.title}<br>{chart.unit or ' '}", "font": {"size": 11}},
                    "gridcolor": "rgba(128,128,128,.28)",
                    "zeroline": False,
                    "rangemode": "tozero" if chart.zero else "normal",
                    "nticks": 4,
                    "automargin": True,
                }
            }
        )
    _dress(figure, legend=False)
    figure.update_layout(
        xaxis={
            "anchor": "free",
            "position": 0.0,
            "type": "date",
            "gridcolor": "rgba(128,128,128,.28)",
            "range": list(window) if window else None,
        }
    )
    figure.update_layout(margin={"l": 70, "r": 14, "t": 22, "b": 40})
    _mark(figure, marks)
    return figure


def density(columns: Sequence[Any], edges: Sequence[float], counts: Any, *, unit: str, x_title: str) -> go.Figure:
    """Draw how many fall into each bin of value, column by column; counts are shown by their logarithm.

    Parameters
    ----------
    counts: [bins, columns]; None where nothing fell.
    edges: lower edge of each bin.
    """
    hover = f"{x_title} %{{x}}<br>%{{y:.4~g}} {unit}<br>%{{customdata}}<extra></extra>"
    figure = go.Figure(
        go.Heatmap(
            x=list(columns),
            y=list(edges),
            z=[[None if not c else _log(c) for c in row] for row in counts],
            customdata=counts,
            colorscale=DENSITY,
            zmin=0,
            showscale=False,
            hovertemplate=hover,
            hoverongaps=False,
        )
    )
    _dress(figure, legend=False)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title={"text": x_title, "standoff": 4}, gridcolor="rgba(128,128,128,.28)", zeroline=False)
    figure.update_yaxes(ticksuffix=f" {unit}", gridcolor="rgba(128,128,128,.28)", zeroline=False, automargin=True)
    figure.update_layout(margin={"b": 40})
    return figure


def bars(
    names: Sequence[str], series: Mapping[str, Sequence[float | None]], *, unit: str, stacked: bool = True
) -> go.Figure:
    """Draw bars, one group a name."""
    figure = go.Figure(
        [
            go.Bar(
                x=list(names),
                y=list(values),
                name=name,
                marker={"color": PALETTE[i % len(PALETTE)], "line": {"width": 0}},
                hovertemplate=f"%{{y:.4~g}} {unit}<extra>{name}</extra>",
            )
            for i, (name, values) in enumerate(series.items())
        ]
    )
    _dress(figure, legend=len(series) > 1)
    figure.update_layout(barmode="stack" if stacked else "group", bargap=0.25)
    figure.update_xaxes(type="category")
    figure.update_yaxes(
        ticksuffix=f" {unit}" if unit else "", gridcolor="rgba(128,128,128,.28)", zeroline=False, automargin=True
    )
    return figure


def _log(count: float) -> float:
    return math.log10(count + 1)


def _traces(chart: Strip) -> list[Any]:
    traces = []
    names = [name for name in chart.series if name != chart.strong]
    if chart.strong is not None and chart.strong in chart.series:
        names.append(chart.strong)
    for index, name in enumerate(names):
        times, values = chart.series[name]
        peer = chart.strong is not None and name != chart.strong
        colour = QUIET if peer else PALETTE[0 if chart.strong else index % len(PALETTE)]
        traces.append(
            go.Scatter(
                x=list(times),
                y=list(values),
                name=name,
                mode="lines",
                connectgaps=False,
                opacity=0.45 if peer else 1,
                line={"width": 1 if peer else 1.7, "color": colour},
                hovertemplate=f"%{{y:.4~g}} {chart.unit}<extra>{name}</extra>",
                hoverinfo="skip" if peer and len(names) > 12 else None,
            )
        )
    return traces


def _dress(figure: go.Figure, *, legend: bool) -> None:
    figure.update_layout(
        margin={"l": 56, "r": 12, "t": 24 if legend else 8, "b": 36},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "inherit", "size": 12, "color": QUIET},
        hovermode="x unified",
        showlegend=legend,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "font": {"size": 11}},
        uirevision="keep",
        dragmode=False,
        template="none",
    )


def _mark(figure: go.Figure, marks: Sequence[Mark]) -> None:
    shapes, notes = [], []
    for mark in marks:
        colour = MARK.get(mark.tone, PALETTE[0])
        shapes.append(
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
            notes.append(
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
    figure.update_layout(shapes=shapes, annotations=notes)

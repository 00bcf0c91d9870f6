"""The one factory of charts: same look everywhere, and no button that calls another server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from dash import dcc

#: Colour-blind safe, readable on light and dark; the first is the series that matters.
PALETTE = ("#2f6fde", "#d9730d", "#1f9d72", "#b5478f", "#8a6d1b", "#5b6475", "#c0392b", "#0e8fa8")

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


def graph(graph_id: str, *, height_px: int = 220) -> dcc.Graph:
    """Return an empty chart to be filled by a callback."""
    return dcc.Graph(id=graph_id, figure=lines({}, unit=""), config=dict(CONFIG), style={"height": f"{height_px}px"})


def lines(
    series: Mapping[str, tuple[Sequence[Any], Sequence[float | None]]],
    *,
    unit: str,
    dark: bool = False,
    zero: bool = True,
    empty_text: str = "",
) -> go.Figure:
    """Draw values over time.

    Parameters
    ----------
    series: name to (times, values); None in values is a gap, never a zero.
    unit: shown on the axis and in the hover text.
    dark: colours for a dark page.
    zero: the axis starts at 0.
    empty_text: what to say when there is no value at all.
    """
    ink, grid = ("#c9d1d9", "#2b3340") if dark else ("#39424e", "#e6e9ee")
    figure = go.Figure()
    for index, (name, (times, values)) in enumerate(series.items()):
        figure.add_trace(
            go.Scatter(
                x=list(times),
                y=list(values),
                name=name,
                mode="lines",
                connectgaps=False,
                line={"width": 1.6, "color": PALETTE[index % len(PALETTE)]},
                hovertemplate=f"%{{y:.4~g}} {unit}<extra>{name}</extra>",
            )
        )
    figure.update_layout(
        margin={"l": 52, "r": 12, "t": 8, "b": 28},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "inherit", "size": 12, "color": ink},
        hovermode="x unified",
        showlegend=len(series) > 1,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 11}},
        uirevision="keep",
    )
    figure.update_xaxes(gridcolor=grid, zeroline=False, type="date")
    figure.update_yaxes(
        gridcolor=grid, zeroline=False, ticksuffix=f" {unit}" if unit else "", rangemode="tozero" if zero else "normal"
    )
    if empty_text and not any(value is not None for _, values in series.values() for value in values):
        figure.add_annotation(text=empty_text, showarrow=False, xref="paper", yref="paper", x=0.5, y=0.5)
        figure.update_xaxes(visible=False)
        figure.update_yaxes(visible=False)
    return figure

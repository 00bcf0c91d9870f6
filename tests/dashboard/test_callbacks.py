"""Callback requests that no page of ours sends are answered with 400."""

from __future__ import annotations

from typing import Any

import pytest
from dash import Dash, Input, Output, State, html

from flightwatch.dashboard.callbacks import refuse_malformed

GOOD: dict[str, Any] = {
    "output": "out.children", "outputs": {"id": "out", "property": "children"},
    "inputs": [{"id": "in", "property": "n_clicks", "value": 1}],
    "state": [{"id": "st", "property": "title", "value": "x"}], "changedPropIds": ["in.n_clicks"],
}  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Any:
    dash = Dash("flightwatch.dashboard", serve_locally=True, include_assets_files=False)
    dash.layout = html.Div([html.Div(id="out"), html.Button(id="in"), html.Div(id="st")])

    @dash.callback(Output("out", "children"), Input("in", "n_clicks"), State("st", "title"))
    def show(clicks: int, title: str) -> str:
        return f"{clicks} {title}"

    refuse_malformed(dash)
    return dash.server.test_client()


def test_a_callback_of_ours_is_answered(client: Any) -> None:
    answer = client.post("/_dash-update-component", json=GOOD)
    assert (answer.status_code, answer.json["response"]["out"]["children"]) == (200, "1 x")


@pytest.mark.parametrize(
    "change",
    [{"output": None}, {"output": "other.children"}, {"output": ["out.children"]}, {"inputs": None}, {"inputs": []},
     {"inputs": [1]}, {"inputs": [{"id": 1, "property": "n_clicks"}]}, {"inputs": [{"id": "in"}]}, {"inputs": {}},
     {"state": []}, {"state": [[]] * 3}, {"changedPropIds": 1}, {"changedPropIds": [1]}, {"outputs": 1},
     {"outputs": [None]}, {"state": [[1]]}],
)  # fmt: skip
def test_what_does_not_fit_is_400(client: Any, change: dict[str, Any]) -> None:
    answer = client.post("/_dash-update-component", json=GOOD | change)
    assert (answer.status_code, answer.json["error"]["code"]) == (400, "malformed")


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"1", b'"x"', b"\xff", b"[" * 50_000])
def test_what_is_no_object_is_400(client: Any, body: bytes) -> None:
    answer = client.post("/_dash-update-component", data=body, content_type="application/json")
    assert answer.status_code == 400

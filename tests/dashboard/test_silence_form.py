"""The form that silences many: who may act for some tenants only says for which."""

from __future__ import annotations

import pytest

from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.pages.incidents import matcher_fields
from flightwatch.pipeline.control.roles import Grant, Role

BLUE, RED = Grant(Role.OPERATOR, "blue"), Grant(Role.ADMIN, "red")


@pytest.mark.parametrize(
    ("grants", "tenants"),
    [
        ([Grant(Role.OPERATOR)], []),
        ([BLUE], ["blue"]),
        ([RED, BLUE, Grant(Role.VIEWER, "green")], ["blue", "red"]),
        ([Grant(Role.VIEWER), BLUE], ["blue"]),
    ],
)
def test_a_tenant_is_asked_for_where_the_server_would_want_one(grants: list[Grant], tenants: list[str]) -> None:
    fields = matcher_fields(Viewer("ann", "Ann", grants, "session")).to_plotly_json()["props"]["children"]
    menus = [field.children[1] for field in fields if getattr(field.children[1], "name", "") == "tenant"]
    assert [option.value for menu in menus for option in menu.children] == tenants

"""Numbers, ages and sizes as people read them."""

from __future__ import annotations

import pytest

from flightwatch.dashboard.components.text import age_text, amount_text, bytes_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0, "0"), (12345, "12,345"), (0.12345, "0.1235"), (2.5e7, "25 M"), (-3, "-3")],
)
def test_amounts(value: float | None, text: str) -> None:
    assert amount_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "—"), (0.4, "0.4 s"), (42, "42 s"), (240, "4 min"), (7200, "2 h"), (200000, "2 d")],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(None, "—"), (0, "0 B"), (2048, "2.0 KiB"), (5 * 2**30, "5.0 GiB"), (2**52, "4096.0 TiB")]
)
def test_sizes(count: float | None, text: str) -> None:
    assert bytes_text(count) == text

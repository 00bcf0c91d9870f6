"""Numbers, sizes and ages as people read them."""

from __future__ import annotations


def amount_text(value: float | None) -> str:
    """Render a number with at most four significant digits; None is "unknown", never 0."""
    if value is None:
        return "unknown"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    if abs(value) >= 1e6:
        return f"{value:,.4g}" if abs(value) < 1e15 else f"{value:.3e}"
    return f"{value:.4g}"


def age_text(seconds: float | None) -> str:
    """Render a duration in its largest sensible unit, for example `1.2 s`, `4 min`, `3 h`, `2 d`."""
    if seconds is None:
        return "unknown"
    for limit, divisor, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            amount = seconds / divisor
            return f"{amount:.1f} {unit}" if unit == "s" and amount < 10 else f"{amount:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def bytes_text(count: float | None) -> str:
    """Render a number of bytes with binary units."""
    if count is None:
        return "unknown"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

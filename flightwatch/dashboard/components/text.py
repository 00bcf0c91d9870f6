"""Numbers, sizes and ages as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from flightwatch.dashboard.i18n import t

#: Shown for what is not known; never 0.
DASH = "—"


def amount_text(value: float | None) -> str:
    """Render a number with at most four significant digits; None is a dash, never 0."""
    if value is None or value != value:
        return DASH
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "-∞"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    for limit, divisor, suffix in ((1e15, 1e12, "T"), (1e12, 1e9, "G"), (1e9, 1e6, "M")):
        if limit / 1000 <= abs(value) < limit:
            return f"{value / divisor:.4g} {suffix}"
    return f"{value:.3e}" if abs(value) >= 1e15 else f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def hours_text(value: float | None) -> str:
    """Render GPU-hours: whole from 100 on, one digit from 1 on, below that two; `< 0.01` for nearly none."""
    if value is None or value != value:
        return DASH
    if 0 < value < 0.01:
        return "< 0.01"
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def age_text(seconds: float | None) -> str:
    """Render a duration in its largest sensible unit, for example `1.2 s`, `4 min`, `3 h`, `2 d`."""
    if seconds is None:
        return DASH
    for limit, divisor, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            amount = seconds / divisor
            return t(f"age.{unit}", n=f"{amount:.1f}" if unit == "s" and amount < 10 else f"{amount:.0f}")
    return t("age.d", n=f"{seconds / 86400:.0f}")


def bytes_text(count: float | None) -> str:
    """Render a number of bytes with binary units."""
    if count is None:
        return DASH
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def percent_text(ratio: float | None, digits: int = 1) -> str:
    """Render a share of one in percent."""
    return DASH if ratio is None or ratio != ratio else f"{100 * ratio:.{digits}f} %"


def micros_text(micros: float | None) -> str:
    """Render microseconds in us, ms or s."""
    if micros is None or micros != micros:
        return DASH
    for limit, divisor, unit in ((1e3, 1, "µs"), (1e6, 1e3, "ms")):
        if abs(micros) < limit:
            return f"{micros / divisor:.4g} {unit}"
    return f"{micros / 1e6:.4g} s"


def ago_text(seconds: float | None) -> str:
    """Render an age, for example `4 min ago`."""
    return DASH if seconds is None else t("ago", age=age_text(max(0.0, seconds)))


def utc_stamp(ts_ms: int) -> str:
    """Render a moment as a part of a file name."""
    return datetime.fromtimestamp(ts_ms / 1000, tz=UTC).strftime("%Y%m%dT%H%M%SZ")

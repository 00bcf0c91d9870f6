"""Read a cell of a vendor tool's output: a number with a unit, or a text that means "unknown".

Vendor tools print `97.69 W`, `(500Mhz)`, `16x`, `N/A`, `[N/A]`, `Unknown Error`, `Requested functionality
has been deprecated`. A text that is not a number gives None and the reason; never 0, never a guess.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from flightwatch.collectors.captures.base import to_float, to_int

#: Reasons for a NULL, as they stand in notes.
NOT_SUPPORTED = "not supported by the device or driver"
DEPRECATED = "deprecated by the driver"
NOT_READABLE = "could not be read by the tool"
ABSENT = "not in this capture"
BLANK = "the exporter's blank sentinel"
MALFORMED = "not a number"
UNKNOWN_UNIT = "the unit is not understood"
OVERFLOW = "does not fit the column"

_WHOLE_LIMIT = 2**64

_NOT_SUPPORTED = frozenset(
    (
        "", "n/a", "na", "n/s", "-", "--", "none", "null", "nil", "not supported", "not available", "unsupported",
        "not applicable", "not active n/a", "not specified", "nan", "invalid", "not present", "feature not supported",
    )
)  # fmt: skip
_NOT_READABLE = (
    "unknown", "err!", "error", "gpu is lost", "gpu requires reset", "insufficient permission", "no permission",
    "failed", "timeout", "timed out", "unable to", "not found", "function not found", "reset required",
)  # fmt: skip
_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,3})?)\s{0,8}([A-Za-z%°µμ/()]{0,16})", re.ASCII
)
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,16}", re.ASCII)

#: Target unit to the factors of the units a tool may print. Vendor tools print MB and mean MiB.
_FACTORS: dict[str, dict[str, float]] = {
    "C": {"": 1, "c": 1, "°c": 1, "celsius": 1, "mc": 1e-3},
    "W": {"": 1, "w": 1, "watt": 1, "watts": 1, "mw": 1e-3, "uw": 1e-6, "kw": 1e3},
    "mV": {"": 1, "mv": 1, "v": 1e3, "uv": 1e-3},
    "MHz": {"": 1, "mhz": 1, "ghz": 1e3, "khz": 1e-3, "hz": 1e-6},
    "%": {"": 1, "%": 1, "percent": 1, "ratio": 100},
    "ratio": {"": 1, "ratio": 1, "%": 0.01},
    "bytes": {
        "": 1, "b": 1, "byte": 1, "bytes": 1, "kib": 2**10, "kb": 2**10, "mib": 2**20, "mb": 2**20, "m": 2**20,
        "gib": 2**30, "gb": 2**30, "g": 2**30, "tib": 2**40, "tb": 2**40, "k": 2**10,
    },
    "us": {"": 1, "us": 1, "µs": 1, "μs": 1, "ns": 1e-3, "ms": 1e3, "s": 1e6, "sec": 1e6, "seconds": 1e6},
    "J": {"": 1, "j": 1, "joule": 1, "joules": 1, "mj": 1e-3, "uj": 1e-6, "kj": 1e3, "wh": 3600, "kwh": 3.6e6},
    "count": {
        "": 1, "count": 1, "x": 1, "bank": 1, "banks": 1, "bank(s)": 1, "errors": 1,
        "lanes": 1, "us": 1, "rpm": 1, "gen": 1,
        "ul": 1,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """What one cell says.

    Attributes
    ----------
    value: the number in the unit asked for, or None.
    reason: why the value is None (one of this module's constants); None when there is a value.
    """

    value: int | float | None
    reason: str | None = None


def reason_for(text: str) -> str | None:
    """Say why a text means "unknown": one of the reason constants, or None when it may be a value."""
    plain = text.strip().strip("[]<>").strip().lower()
    if plain in _NOT_SUPPORTED or plain.startswith("n/a"):
        return NOT_SUPPORTED
    if "deprecated" in plain:
        return DEPRECATED
    if plain.startswith(_NOT_READABLE):
        return NOT_READABLE
    return None


def quantity(text: str, unit: str, default_unit: str = "", *, bare: bool = True) -> Quantity:
    """Read a cell as a number in `unit`.

    Parameters
    ----------
    text: the cell, for example "627.40 W", "(500Mhz)", "[N/A]".
    unit: unit of the result: C, W, mV, MHz, %, ratio, bytes, us, J or count.
    default_unit: unit of a bare number (from the header or the documentation), "" for `unit` itself.
    bare: whether a number without a unit is accepted. A tool that always prints units and here did not was
        cut off in the middle of the cell. Counts never need one.
    """
    reason = reason_for(text)
    if reason is not None:
        return Quantity(None, reason)
    plain = text.strip()
    if plain[:1] in "([" and plain[-1:] in ")]":
        plain = plain[1:-1].strip()
    if _HEX.fullmatch(plain) and unit == "count":
        return Quantity(to_int(plain))
    match = _QUANTITY.fullmatch(plain)
    if match is None:
        return Quantity(None, MALFORMED)
    printed_unit = (match[2] or default_unit).lower()
    if not bare and not printed_unit and unit != "count":
        return Quantity(None, MALFORMED)
    factor = _FACTORS[unit].get(printed_unit)
    if factor is None:
        return Quantity(None, UNKNOWN_UNIT)
    whole = to_int(match[1])
    number = whole if whole is not None else to_float(match[1])
    return Quantity(None, MALFORMED) if number is None else Quantity(scaled(number, factor))


def scaled(value: int | float, factor: float) -> int | float:
    """Multiply into another unit without inventing digits: exact for whole numbers, else to 12 digits."""
    if isinstance(value, int) and abs(value) >= _WHOLE_LIMIT:
        return math.inf if value > 0 else -math.inf  # JSON sets no limit; no counter is wider than 64 bits
    if isinstance(value, int) and float(factor).is_integer():
        return value * int(factor)
    return float(f"{value * factor:.12g}")


def yes_no(text: str) -> tuple[bool | None, str | None]:
    """Read Yes/No, 0/1, True/False, Active/Not Active, Enabled/Disabled; (None, reason) for anything else."""
    plain = text.strip().lower()
    if plain in ("yes", "1", "true", "active", "enabled", "pending", "on"):
        return True, None
    if plain in ("no", "0", "false", "not active", "disabled", "off", "none"):
        return False, None
    return None, reason_for(text) or MALFORMED


def text_or_none(text: str | None) -> str | None:
    """Return a name as printed, or None when the text means "unknown"."""
    if text is None:
        return None
    stripped = text.strip()
    unknown = reason_for(stripped) in (NOT_SUPPORTED, DEPRECATED) or stripped.lower().strip("[]") == "unknown error"
    return None if unknown else stripped

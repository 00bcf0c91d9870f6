"""One cell against its catalogue column: what fits, what is converted, what is refused."""

from __future__ import annotations

import math
from typing import Any

from flightwatch.core.catalogue import Column
from flightwatch.core.errors import BadRecord

INTEGER_RANGES = {
    "u8": (0, 2**8 - 1),
    "u16": (0, 2**16 - 1),
    "u32": (0, 2**32 - 1),
    "u64": (0, 2**64 - 1),
    "i16": (-(2**15), 2**15 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "i64": (-(2**63), 2**63 - 1),
    # What DateTime64(3) can hold: 1970 to 2299, milliseconds.
    "time": (0, 10_413_791_999_999),
}
FLOATS = ("f32", "f64")
TEXTS = ("word", "text")
MAX_F32 = 3.4028235677973366e38
MAX_EXACT_INT = 2**53


def missing(column: Column) -> Any:
    """Return what stands for "not said" in this column.

    Raises
    ------
    BadRecord: the column must have a value.
    """
    if column.type.startswith("map"):
        return {}
    if column.type.startswith("list"):
        return []
    if column.nullable:
        return None
    if column.type in TEXTS:
        return ""
    raise BadRecord(f"{column.name} is missing")


def checked(column: Column, value: Any) -> Any:
    """Return `value` as the column stores it.

    Raises
    ------
    BadRecord: wrong type, out of range, or text that is not UTF-8.
    """
    if value is None:
        return missing(column)
    kind = column.type
    if kind in TEXTS:
        return text(column.name, value)
    if kind in INTEGER_RANGES:
        return integer(column.name, value, INTEGER_RANGES[kind])
    if kind in FLOATS:
        return number(column.name, value, kind)
    if kind == "bool":
        if type(value) is not bool:
            raise BadRecord(f"{column.name} must be true or false, not {_shown(value)}")
        return value
    if kind.startswith("map"):
        return mapping(column.name, value, kind)
    return listing(column.name, value, kind)


def text(name: str, value: Any) -> str:
    """Return valid UTF-8 text or raise BadRecord."""
    if type(value) is not str:
        raise BadRecord(f"{name} must be text, not {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRecord(f"{name} is not valid UTF-8") from error
    return value


def integer(name: str, value: Any, bounds: tuple[int, int]) -> int:
    """Return an integer in bounds; a float is taken only when it is one exactly."""
    if type(value) is float and value.is_integer() and abs(value) <= MAX_EXACT_INT:
        value = int(value)
    if type(value) is not int:
        raise BadRecord(f"{name} must be an integer, not {_shown(value)}")
    if not bounds[0] <= value <= bounds[1]:
        raise BadRecord(f"{name} = {_shown(value)} is out of range")
    return value


def number(name: str, value: Any, kind: str) -> float:
    """Return a float; NaN and infinities are kept as such."""
    if type(value) not in (int, float):
        raise BadRecord(f"{name} must be a number, not {_shown(value)}")
    try:
        converted = float(value)
    except OverflowError as error:
        raise BadRecord(f"{name} = {_shown(value)} is out of range") from error
    if kind == "f32" and MAX_F32 < abs(converted) < math.inf:
        raise BadRecord(f"{name} = {_shown(value)} is out of range")
    return converted


def mapping(name: str, value: Any, kind: str) -> dict[str, Any]:
    """Return a map; entries without a value are left out (unknown)."""
    if type(value) is not dict:
        raise BadRecord(f"{name} must be a map, not {_shown(value)}")
    out: dict[str, Any] = {}
    for key, item in value.items():
        if item is None:
            continue
        where = f"{name}[{key[:80]!a}]"
        text(where, key)
        if kind == "map_text":
            out[key] = text(where, item)
        elif kind == "map_u64":
            out[key] = integer(where, item, INTEGER_RANGES["u64"])
        else:
            out[key] = number(where, item, "f64")
    return out


def listing(name: str, value: Any, kind: str) -> list[Any]:
    """Return a list whose items all fit."""
    if type(value) is not list:
        raise BadRecord(f"{name} must be a list, not {_shown(value)}")
    if kind == "list_i32":
        return [integer(name, item, INTEGER_RANGES["i32"]) for item in value]
    return [text(name, item) for item in value]


def _shown(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."

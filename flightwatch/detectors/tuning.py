"""Other thresholds than the defaults, by name; a tuned detector's version says so.

A name is dotted (`channels.compute.level_z`) or plain: a plain name stands for every threshold of that name
inside the detector. A table of windows (length, z, effect) has the names `windows.z` and `windows.effect`: one
value for all of its windows; what is shown of it is the smallest.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from flightwatch.core.errors import ConfigError
from flightwatch.detectors.contract import Detector

#: Column of a table of windows by its name.
WINDOW_COLUMNS = {"z": 1, "effect": 2}


def thresholds_of(detector: Detector) -> dict[str, float]:
    """Return the dotted name and value of every threshold that can be set."""
    return dict(_numbers(getattr(detector, "thresholds", None), ""))


def _numbers(holder: Any, prefix: str) -> Iterator[tuple[str, float]]:
    if not dataclasses.is_dataclass(holder):
        return
    for field in dataclasses.fields(holder):
        value = getattr(holder, field.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{field.name}", value
        elif dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{prefix}{field.name}.")
        elif _is_table(value):
            for name, at in WINDOW_COLUMNS.items():
                yield f"{prefix}{field.name}.{name}", min(float(row[at]) for row in value)


def _is_table(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(row, tuple) and len(row) == 3 for row in value)


def tuned(detector: Detector, overrides: Mapping[str, float]) -> Detector:
    """Return a detector of the same kind with some thresholds changed; without overrides the detector itself.

    Its version is the detector's, a plus sign and eight digits of a hash of what was changed.

    Raises
    ------
    ConfigError: the detector has no such threshold, or the value is none of its kind.
    """
    if not overrides:
        return detector
    known = thresholds_of(detector)
    holder = getattr(detector, "thresholds", None)
    for name, value in overrides.items():
        paths = [path for path in known if path == name or path.rpartition(".")[2] == name]
        if not paths:
            offered = ", ".join(sorted({path.rpartition(".")[2] for path in known})) or "none"
            raise ConfigError(f"the detector {detector.name} has no threshold {name!r}; known: {offered}")
        for path in paths:
            holder = _replaced(holder, path, _alike(detector.name, path, known[path], value))
    # What else an instance holds (a model file, expectations) stays.
    changed = copy.copy(detector)
    changed.thresholds = holder  # type: ignore[attr-defined]
    digest = hashlib.sha256(json.dumps(dict(overrides), sort_keys=True).encode()).hexdigest()
    changed.version = f"{detector.version}+{digest[:8]}"
    return changed


def _alike(detector: str, path: str, before: float, value: float) -> float:
    if isinstance(before, int) and value != int(value):
        raise ConfigError(f"the threshold {detector}.{path} is a whole number, not {value:g}")
    return int(value) if isinstance(before, int) else float(value)


def _replaced(holder: Any, path: str, value: float) -> Any:
    name, _, rest = path.partition(".")
    if isinstance(holder, tuple):
        at = WINDOW_COLUMNS[name]
        return tuple((*row[:at], value, *row[at + 1 :]) for row in holder)
    inner = value if not rest else _replaced(getattr(holder, name), rest, value)
    return dataclasses.replace(holder, **{name: inner})


def parse_override(text: str) -> tuple[str, str, float]:
    """Read `DETECTOR.THRESHOLD=NUMBER`; return detector, threshold and value. Raises ConfigError."""
    name, equals, number = text.partition("=")
    detector, dot, threshold = name.strip().partition(".")
    try:
        value = float(number)
    except ValueError:
        equals = ""
    if not (equals and dot and detector and threshold) or value != value or value in (float("inf"), float("-inf")):
        raise ConfigError(f"{text!r}: write a threshold as DETECTOR.NAME=NUMBER, for example fail_slow.shift=0.05")
    return detector, threshold, value

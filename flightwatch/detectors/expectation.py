"""What a job should reach, from a file: a performance model's output or a target somebody wrote down.

The file is JSON: one object, a list of them, or `{"jobs": [...]}`. Known keys of an object:

- `job`: name or pattern (`pretrain-*`), `ranks`: world size; without them it holds for every job or size;
- `step_ms`, `tokens_per_second` (whole job), `tokens_per_second_per_device`, `tokens_per_step` (whole job);
- `mfu` (0..1) with `flops_per_token` and `peak_tflops` of a device (dense, of the training's data type);
- `tolerance`: how far below is no finding (default 0.1: a model is not a measurement).

The names that SimuMax writes are understood: `duration_time_per_iter` (milliseconds, or text with its unit),
`throughput_per_accelerator`, `all_tokens_per_iter`, `mfu_6nd_with_attn`. Other keys are passed over.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flightwatch.core.errors import ConfigError

#: Names of other programs for our keys.
_ALIASES = {
    "duration_time_per_iter": "step_ms",
    "duration_time_per_iter_ms": "step_ms",
    "throughput_per_accelerator": "tokens_per_second_per_device",
    "all_tokens_per_iter": "tokens_per_step",
    "mfu_6nd_with_attn": "mfu",
}
_NUMBERS = ("step_ms", "tokens_per_second", "tokens_per_second_per_device", "tokens_per_step", "mfu", "flops_per_token",
            "peak_tflops", "tolerance")  # fmt: skip
_TIME = re.compile(r"\s*([0-9.eE+-]+)\s*(us|ms|s|m|min|h)?\s*")
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "min": 6e4, "h": 3.6e6}


@dataclass(frozen=True)
class Expectation:
    """What jobs of one name and size should reach.

    Attributes
    ----------
    job: pattern. ranks: world size, None for every. tolerance: how far below is no finding (ratio).
    step_ms: duration of a step. tokens_per_second: of the whole job; per_device: of one accelerator.
    mfu, flops_per_token, peak_tflops: model FLOP utilisation and what it is made of.
    """

    job: str = "*"
    ranks: int | None = None
    tolerance: float = 0.1
    step_ms: float | None = None
    tokens_per_second: float | None = None
    tokens_per_second_per_device: float | None = None
    mfu: float | None = None
    flops_per_token: float | None = None
    peak_tflops: float | None = None

    def fits(self, job: str, ranks: int) -> bool:
        """Say whether it is about a job."""
        return fnmatch.fnmatchcase(job, self.job) and self.ranks in (None, ranks)

    def rate(self, ranks: int) -> float | None:
        """Return the tokens per second that the whole job should reach, None when the file does not say."""
        if self.tokens_per_second is not None:
            return self.tokens_per_second
        if self.tokens_per_second_per_device is not None:
            return self.tokens_per_second_per_device * ranks
        if self.mfu is None or self.flops_per_token is None or self.peak_tflops is None:
            return None
        return self.mfu * self.peak_tflops * 1e12 * ranks / self.flops_per_token

    def mfu_of(self, tokens_per_second: float, ranks: int) -> float | None:
        """Return the utilisation of a measured rate, None when FLOPs per token or the peak are not known."""
        if self.flops_per_token is None or self.peak_tflops is None:
            return None
        return tokens_per_second * self.flops_per_token / (self.peak_tflops * 1e12 * ranks)


def read_expectation(path: Path) -> tuple[Expectation, ...]:
    """Read a file of expectations.

    Raises
    ------
    ConfigError: it cannot be read, is no JSON, or says nothing that can be compared.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"expectation {path}: cannot read the file: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"expectation {path}: is not JSON: {error}") from error
    if isinstance(document, Mapping) and isinstance(document.get("jobs"), list):
        document = document["jobs"]
    entries = document if isinstance(document, list) else [document]
    return tuple(_entry(one, f"expectation {path}, entry {at + 1}") for at, one in enumerate(entries))


def _entry(entry: Any, where: str) -> Expectation:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: is no object")
    known = {_ALIASES.get(name, name): value for name, value in entry.items() if name not in _shadowed(entry)}
    numbers = {name: _number(known[name], name, where) for name in _NUMBERS if known.get(name) is not None}
    ranks = known.get("ranks", known.get("world_size"))
    if ranks is not None and not (isinstance(ranks, int) and ranks > 0):
        raise ConfigError(f"{where}: ranks = {ranks!r} is no number of ranks")
    tokens = numbers.pop("tokens_per_step", None)
    if tokens is not None and "step_ms" in numbers:
        numbers.setdefault("tokens_per_second", tokens / (numbers["step_ms"] / 1000))
    made = Expectation(job=str(known.get("job", "*")), ranks=ranks, **numbers)
    if made.step_ms is None and made.rate(1) is None:
        wanted = "step_ms, tokens_per_second, or mfu with flops_per_token and peak_tflops"
        raise ConfigError(f"{where}: says nothing to compare with: {wanted}")
    return made


def _shadowed(entry: Mapping[str, Any]) -> set[str]:
    """Return names that another one says better: our own before an alias, MFU by 6ND before that by simulated FLOPs."""
    ours = {alias for alias, name in _ALIASES.items() if name in entry and name != "mfu"}
    return ours | ({"mfu"} if "mfu_6nd_with_attn" in entry else set())


def _number(value: Any, name: str, where: str) -> float:
    number = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str) and (match := _TIME.fullmatch(value)) is not None:
        try:
            number = float(match[1]) * (_MS[match[2] or "ms"] if name == "step_ms" else 1.0)
        except ValueError:
            number = math.nan
    if not math.isfinite(number) or number <= 0:
        raise ConfigError(f"{where}: {name} = {value!r} is no number above 0")
    return number

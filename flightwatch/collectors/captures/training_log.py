"""Lines of training loops into scalars and timings.

Megatron-LM and its forks, DeepSpeed, Hugging Face, Lightning/NeMo, torchtitan, MindSpore, Paddle and the
"step N ... loss ..." lines that hand-written loops print. Values are taken as printed: `grad norm: nan` is
NaN whatever "number of nan iterations" says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flightwatch.collectors.captures.base import make_row
from flightwatch.collectors.captures.log_prefix import Prefix
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import OpKind, OpLevel

CARRIES: Mapping[str, tuple[str, ...]] = {
    "training_scalars": ("step", "rank", "name", "value"),
    "op_timings": ("level", "step", "steps", "rank", "kind", "op", "dur_us", "span_us", "min_us", "max_us", "count"),
}
#: Longest line looked at, in characters.
LINE_LIMIT = 64_000
#: Values taken from one line.
VALUE_LIMIT = 200
#: Lines to wait for the progress bar that gives a Hugging Face record its step.
BAR_LINES = 3

TRIGGER = re.compile(
    r"[Ii]teration|[Ss]tep|loss|time \(ms\)|across ranks \(ms\)|OVERFLOW|\d/\d{1,12} \[|\.\.\.\.: |norm"
)
_NUMBER = (
    r"[-+]?(?:\d[\d,]{0,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|\.\d{1,40}(?:[eE][-+]?\d{1,4})?"
    r"|nan|NaN|NAN|inf|Inf|Infinity)(?![\d.])"
)
_ITERATION = re.compile(r"\biteration\s{1,12}(\d{1,15})/\s{0,15}(\d{1,15})\s{0,3}\|(.*)")
_PAIR = re.compile(rf"\s*([A-Za-z][\w \-/().]{{0,80}}?)\s*[:=]\s*({_NUMBER})\s*(?:[A-Za-z%/]{{0,12}})?\s*")
_VALIDATION = re.compile(r"(validation|test) loss at iteration (\d{1,15})\s?\|(.*)")
_TIMERS = re.compile(r"time \(ms\)\s?\|(.*)")
_TIMER_TABLE = re.compile(r"\((min, max)\) time across ranks \(ms\):|(max|min) time across ranks \(ms\):")
_TIMER_ROW = re.compile(r"([a-z][\w\-]{1,60})\s\.*\s?\.*:\s{0,3}(?:\(([\d.]{1,20}),\s?([\d.]{1,20})\)|([\d.]{1,20}))$")
_DEEPSPEED = re.compile(r"\bstep=(\d{1,15}), skipped=(\d{1,15}), lr=\[([^\]]{1,400})\]")
_DEEPSPEED_RATE = re.compile(r"global_step=(\d{1,15}),.{0,80}?CurrSamplesPerSec=(" + _NUMBER + ")")
_OVERFLOW = re.compile(
    r"OVERFLOW!.{0,40}Skipping step.{0,80}?(?:reducing to |Attempted loss scale: )([\d.]{1,24})(?:,|$|\s|\.)"
)
_REDUCING = re.compile(r"reducing to ([\d.]{1,24})")
_HF = re.compile(r"\{'(?:loss|eval_loss|train_runtime|grad_norm|reward|train_loss)'.{0,4000}?\}")
_HF_PAIR = re.compile(rf"'([\w/.\-]{{1,80}})': '?({_NUMBER})'?(?=[,}}\s])")
_BAR = re.compile(
    r"(?:^|[|\s])(\d{1,12})/(\d{1,12}) \[(?:\d{1,4} days?, )?[\d:?.]{1,20}<(?:\d{1,4} days?, )?[\d:?]{1,20}"
    r"(?:,([^\]]{0,1000}))?"
)
_STEP = re.compile(
    r"\b(?:global_step|global step|[Ss]tep|[Ii]ter(?:ation)?|steps|num_updates)\b\s?[:=#\s]?\s{0,8}\[?\s{0,8}"
    r"(\d[\d,]{0,15})(?![\d.]*[a-zA-Z%])"
)
_LOOSE = re.compile(
    r"\b([A-Za-z][\w\-]{0,40}(?: time)?(?: \((?:s|ms)\))?)(?:\s?[:=]\s{0,8}|\s(?:is\s)?)"
    rf"\[?({_NUMBER})\]?\s?(ms|s|%)?(?=[\s,;|\]}})]|$)"
)

#: Names as printed (lower case) to names in `training_scalars`.
_NAMES = {
    "lm loss": "loss", "loss": "loss", "train_loss": "loss", "reduced_train_loss": "loss", "train loss": "loss",
    "train_loss_step": "loss", "train/loss": "loss", "loss_step": "loss", "train/loss_step": "loss",
    "grad norm": "grad_norm", "grad_norm": "grad_norm", "gnorm": "grad_norm", "global_norm": "grad_norm",
    "gradient_norm": "grad_norm", "norm": "grad_norm", "total_norm": "grad_norm", "grad-norm": "grad_norm",
    "learning rate": "lr", "learning_rate": "lr", "lr": "lr",
    "loss scale": "loss_scale", "loss_scale": "loss_scale", "loss-scale": "loss_scale",
    "number of skipped iterations": "skipped_iterations", "number of nan iterations": "nan_iterations",
    "consumed samples": "consumed_samples", "consumed_samples": "consumed_samples",
    "consumed tokens": "consumed_tokens", "global batch size": "global_batch_size",
    "global_batch_size": "global_batch_size", "num zeros": "num_zeros", "params norm": "params_norm",
    "samples per second": "samples_per_second", "samples/sec": "samples_per_second",
    "throughput per gpu (tflop/s/gpu)": "tflops_per_gpu", "tflops": "tflops_per_gpu", "mfu": "mfu_pct",
    "tps": "tokens_per_second", "tok/sec": "tokens_per_second", "ppl": "perplexity", "epoch": "epoch",
    "eval_loss": "eval_loss", "load_balancing_loss": "load_balancing_loss", "val_loss": "validation_loss",
    "memory": "memory_gib",
}  # fmt: skip
#: Names that hold the time of one step, and microseconds per unit.
_STEP_TIMES = {
    "elapsed time per iteration (ms)": 1e3, "elapsed time per iteration (s)": 1e6, "iter time (s)": 1e6,
    "train_step_timing in s": 1e6, "per_step_time": 1e3, "dt": 1e3, "step_time": 1e6, "step time (s)": 1e6,
    "time": 1e3,
}  # fmt: skip
#: Names a hand-written loop's line may carry; anything else on it is left alone.
_LOOSE_NAMES = frozenset({
    "loss", "train_loss", "reduced_train_loss", "grad_norm", "gnorm", "norm", "global_norm", "lr", "learning_rate",
    "loss_scale", "tps", "mfu", "ppl", "tflops", "val_loss", "iter time (s)", "dt", "time", "per_step_time",
    "step_time", "consumed_samples", "total_norm",
})  # fmt: skip
_COMM_WORDS = re.compile(r"all-?reduce|reduce-?scatter|all-?gather|send|recv|comm|broadcast|params-all|grads-")


def number(text: str) -> float | None:
    """Read a printed number, thousands separators, nan and inf included."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


@dataclass(slots=True)
class _Held:
    line: int
    prefix: Prefix
    pairs: list[tuple[str, str]]
    before: int | None
    waited: int = 0


class TrainingLines:
    """Reads training output of one log, in order.

    Parameters
    ----------
    context: gives time and node where a line has none.
    """

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._step: int | None = None
        self._bar: int | None = None
        self._held: _Held | None = None
        self._table = ""
        self._wrapped: tuple[Prefix, str, int] | None = None
        self._after_iteration = False

    def feed(self, line: int, prefix: Prefix) -> Iterator[Row | Note]:
        """Offer one line; yields what it says."""
        text = prefix.message[:LINE_LIMIT]
        if self._wrapped is not None:
            yield from self._continue(text, prefix)
        if self._table and (row := _TIMER_ROW.match(text.strip())):
            yield self._table_row(row, prefix)
            return
        if not TRIGGER.search(text):
            yield from self._wait(None)
            return
        self._table = ""
        bar = list(_BAR.finditer(text))
        yield from self._wait(int(bar[-1][1]) if bar else None)
        yield from self._line(line, text, prefix, bar)
        if bar:
            self._bar = int(bar[-1][1])

    def flush(self) -> Iterator[Row | Note]:
        """End of the log."""
        if self._wrapped is not None:
            prefix, text, _ = self._wrapped
            self._wrapped = None
            yield from self._iteration(text, prefix)
        if self._held is not None:
            held, self._held = self._held, None
            yield from self._pairs(held.pairs, held.before, held.prefix)

    def _line(self, line: int, text: str, prefix: Prefix, bar: list[re.Match[str]]) -> Iterator[Row | Note]:
        after, self._after_iteration = self._after_iteration, False
        if _ITERATION.search(text):
            self._after_iteration = True
            if text.rstrip().endswith("|") or text.count("|") < 3:
                yield from self._iteration(text, prefix)
            else:
                self._wrapped = prefix, text, 1
        elif check := _VALIDATION.search(text):
            pairs = [(f"{check[1]} {name}", value) for name, value in _segments(check[3])]
            yield from self._pairs(pairs, int(check[2]), prefix)
        elif timers := _TIMERS.search(text):
            for name, value in _segments(timers[1]):
                yield from self._timer(name, number(value), number(value), prefix)
        elif table := _TIMER_TABLE.search(text):
            self._table = table[1] or table[2]
        elif deepspeed := _DEEPSPEED.search(text):
            step, rates = int(deepspeed[1]), deepspeed[3].split(",")
            self._step = step
            yield from self._pairs([("skipped_iterations_total", deepspeed[2]), ("lr", rates[0].strip())], step, prefix)
        elif rate := _DEEPSPEED_RATE.search(text):
            yield from self._pairs([("samples per second", rate[2])], int(rate[1]), prefix)
        elif overflow := _OVERFLOW.search(text):
            scale = _REDUCING.search(text) or overflow
            step_now = int(bar[-1][1]) if bar else None
            yield from self._pairs([("overflow", "1"), ("loss scale", scale[1].rstrip("."))], step_now, prefix)
        elif record := _HF.search(text):
            pairs = [(match[1], match[2]) for match in _HF_PAIR.finditer(record[0])]
            later = [match for match in bar if match.start() > record.start()]
            if later:
                yield from self._pairs(pairs, int(later[-1][1]), prefix)
            else:
                yield from self.flush()
                self._held = _Held(line, prefix, pairs, self._bar)
        elif after and text.count("|") >= 2 and (rest := _segments(text)) and rest[0][0] in _NAMES:
            # The terminal broke the iteration's line at a separator.
            yield from self._pairs(rest, self._step, prefix)
        elif bar and bar[-1][3] and "=" in bar[-1][3]:
            pairs = [pair for pair in _segments(bar[-1][3].replace(",", "|")) if pair[0] in _NAMES]
            yield from self._pairs(_only_one_loss(pairs), int(bar[-1][1]), prefix)
        elif "loss" in text.lower():
            yield from self._loose(text, prefix)

    def _wait(self, bar: int | None) -> Iterator[Row | Note]:
        held = self._held
        if held is None:
            return
        held.waited += 1
        if bar is not None or held.waited > BAR_LINES:
            self._held = None
            yield from self._pairs(held.pairs, bar if bar is not None else held.before, held.prefix)

    def _continue(self, text: str, prefix: Prefix) -> Iterator[Row | Note]:
        assert self._wrapped is not None
        origin, begun, count = self._wrapped
        self._wrapped = None
        if "|" in text and not _ITERATION.search(text) and not _TIMERS.search(text) and prefix.layers <= origin.layers:
            joined = begun + text
            if joined.rstrip().endswith("|") or count >= 3:
                yield from self._iteration(joined, origin)
            else:
                self._wrapped = origin, joined, count + 1
            return
        yield from self._iteration(begun, origin)

    def _iteration(self, text: str, prefix: Prefix) -> Iterator[Row | Note]:
        found = _ITERATION.search(text)
        if found is None:
            return
        pairs = _segments(found[3])
        explicit = [number(value) for name, value in pairs if name == "global_step"]
        step = (
            int(explicit[0]) if explicit and explicit[0] is not None and explicit[0] == explicit[0] else int(found[1])
        )
        self._step = step
        yield from self._pairs([pair for pair in pairs if pair[0] != "global_step"], step, prefix)

    def _loose(self, text: str, prefix: Prefix) -> Iterator[Row | Note]:
        found = _STEP.search(text)
        if found is None:
            return
        step = int(found[1].replace(",", ""))
        pairs: list[tuple[str, str]] = []
        for match in _LOOSE.finditer(text):
            name = match[1].lower()
            if name in _LOOSE_NAMES and name not in {pair[0] for pair in pairs}:
                if name in ("dt", "time", "step_time"):
                    if match[3] in ("ms", "s"):
                        yield from self._step_time(step, match[2], 1e3 if match[3] == "ms" else 1e6, prefix)
                    continue
                pairs.append((name, match[2]))
        if any(_NAMES.get(name) in ("loss", "validation_loss") for name, _ in pairs):
            self._step = step
            yield from self._pairs(_only_one_loss(pairs), step, prefix)

    def _pairs(self, pairs: list[tuple[str, str]], step: int | None, prefix: Prefix) -> Iterator[Row | Note]:
        for name, printed in pairs[:VALUE_LIMIT]:
            value, key = number(printed), name.lower().strip()
            if value is None or key == "global_step":
                continue
            if key in _STEP_TIMES and key not in ("dt", "time", "step_time"):
                yield from self._step_time(step, printed, _STEP_TIMES[key], prefix)
                continue
            yield make_row("training_scalars", CARRIES, self._context, {
                "ts": prefix.ts_ms, "node": prefix.host, "step": step,
                "rank": prefix.rank if prefix.rank is not None else -1,
                "name": _NAMES.get(key) or re.sub(r"[^a-z0-9]+", "_", key).strip("_"), "value": value,
            })  # fmt: skip

    def _step_time(self, step: int | None, printed: str, factor: float, prefix: Prefix) -> Iterator[Row | Note]:
        value = number(printed)
        if value is not None and 0 <= value < 1e12:
            yield self._timing(OpLevel.PHASE, OpKind.STEP, "step", step, (value * factor,) * 3, prefix)

    def _timer(self, name: str, low: float | None, high: float | None, prefix: Prefix) -> Iterator[Row | Note]:
        if low is not None and high is not None and 0 <= low <= high < 1e12:
            yield self._timing(
                OpLevel.BLOCK, _kind(name), name, self._step, (high * 1e3, low * 1e3, high * 1e3), prefix
            )

    def _table_row(self, row: re.Match[str], prefix: Prefix) -> Row:
        low = number(row[2] or row[4]) or 0.0
        high = number(row[3] or row[4]) or 0.0
        return self._timing(
            OpLevel.BLOCK, _kind(row[1]), row[1], self._step, (high * 1e3, low * 1e3, high * 1e3), prefix
        )

    def _timing(
        self, level: OpLevel, kind: OpKind, op: str, step: int | None, us: tuple[float, float, float], prefix: Prefix
    ) -> Row:
        us = (round(us[0], 3), round(us[1], 3), round(us[2], 3))
        # Host-side forward and backward timers contain communication: they are spans.
        span = us[0] if re.search(r"forward|backward|fwd|bwd", op) and kind is OpKind.COMPUTE else None
        return make_row("op_timings", CARRIES, self._context, {
            "ts": prefix.ts_ms, "node": prefix.host, "level": level.value, "step": step, "steps": 1,
            "rank": prefix.rank, "kind": kind.value, "op": op, "dur_us": us[0], "span_us": span,
            "min_us": us[1], "max_us": us[2], "count": 1,
        })  # fmt: skip


def _segments(text: str) -> list[tuple[str, str]]:
    found = []
    for segment in text.split("|")[:VALUE_LIMIT]:
        match = _PAIR.fullmatch(segment)
        if match:
            found.append((match[1].strip().lower(), match[2]))
    return found


def _only_one_loss(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """A bar may show a rounded "loss" beside the exact "reduced_train_loss": keep the exact one."""
    if any(name == "reduced_train_loss" for name, _ in pairs):
        return [pair for pair in pairs if pair[0] not in ("loss", "train_loss", "consumed_samples")]
    return pairs


def _kind(name: str) -> OpKind:
    if _COMM_WORDS.search(name):
        return OpKind.COMM
    if "checkpoint" in name:
        return OpKind.CHECKPOINT
    if re.search(r"batch-gen|data|dataload", name):
        return OpKind.IO
    return OpKind.COMPUTE

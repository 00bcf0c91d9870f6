"""Hugging Face `trainer_state.json`: the log history that a checkpoint carries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, load_json, make_row
from flightwatch.core.protocols import CaptureContext, Note, Row

_NAMES = {"learning_rate": "lr"}


class TrainerState:
    """Parser of trainer_state.json."""

    name: ClassVar[str] = "hf-trainer-state"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"training_scalars": ("step", "rank", "name", "value")}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"ts": "the history carries no time"}

    def recognise(self, head: bytes) -> bool:
        """Say whether this is a trainer state."""
        text = head_text(head)
        return text.lstrip().startswith("{") and '"log_history"' in text

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one scalar per logged value; rank -1: the whole job."""
        value, notes = load_json(stream)
        yield from notes
        history = value.get("log_history") if isinstance(value, dict) else None
        for record in history if isinstance(history, list) else []:
            if isinstance(record, dict) and _is_step(record.get("step")):
                yield from self._record(record, context)

    def _record(self, record: dict[str, Any], context: CaptureContext) -> Iterator[Row]:
        for name, value in record.items():
            if name == "step" or isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if isinstance(value, int) and abs(value) > 2**64:
                continue
            yield make_row("training_scalars", self.CARRIES, context, {
                "step": record["step"], "rank": -1, "name": _NAMES.get(name, name), "value": float(value),
            })  # fmt: skip


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63

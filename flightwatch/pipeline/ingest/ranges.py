"""An exact range of offsets, the intent that announces it, and the tokens of its blocks."""

from __future__ import annotations

import json
from dataclasses import dataclass

from flightwatch.pipeline.bus.base import Jump, Partition
from flightwatch.pipeline.codec.wire import DECODER_VERSION


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets that the log no longer holds when they should be read; see `bus.base.Jump`."""

    wanted: int
    resumed: int
    reason: str

    @classmethod
    def of(cls, jump: Jump) -> Hole:
        """Return the hole a jump leaves."""
        return cls(jump.wanted, jump.resumed, jump.reason)


@dataclass(frozen=True, slots=True)
class Range:
    """Messages [start, end) of one partition: what one round of inserts stores.

    Attributes
    ----------
    incarnation: id of the log; a recreated log numbers other messages with the same offsets.
    hole: offsets lost just before `start`, to be reported with this range.
    """

    partition: Partition
    incarnation: str
    start: int
    end: int
    hole: Hole | None = None

    def token(self, part: str) -> str:
        """Return the deduplication token of one block of this range; `part` tells its blocks apart."""
        place = f"{self.partition.topic}:{self.partition.number}:{self.start}:{self.end}"
        return f"{self.incarnation}:{place}:{part}:v{DECODER_VERSION}"


@dataclass(frozen=True, slots=True)
class Intent:
    """What is stored with a group's position before a range is inserted.

    Attributes
    ----------
    end: end of the range whose blocks may or may not be in the store.
    at_ms: wall clock when it was announced, to judge whether the deduplication window still reaches back.
    decoder: version that built the blocks; another one may build other blocks.
    """

    end: int
    at_ms: int
    decoder: int = DECODER_VERSION
    hole: Hole | None = None

    def to_metadata(self) -> str:
        """Return the text stored with the position."""
        fields = {"end": self.end, "at": self.at_ms, "decoder": self.decoder}
        hole = [self.hole.wanted, self.hole.resumed, self.hole.reason] if self.hole else None
        return json.dumps(fields if hole is None else fields | {"hole": hole})

    @classmethod
    def from_metadata(cls, text: str) -> Intent | None:
        """Read the text stored with a position; None when no range was announced."""
        if not text:
            return None
        try:
            fields = json.loads(text)
            hole = fields.get("hole")
            return cls(int(fields["end"]), int(fields["at"]), int(fields["decoder"]), Hole(*hole) if hole else None)
        except (ValueError, KeyError, TypeError, AttributeError):
            # Written by hand or by another program: where the position is, still counts.
            return None

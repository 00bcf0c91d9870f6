"""The verdict about a hang and the sentence that states it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flightwatch.core.clock import iso_utc

SUSPECT_LIMIT = 16


@dataclass(slots=True)
class HangVerdict:
    """What is known about a hang; `as_dict` gives the public form.

    `verdict` is one of missing_rank, op_mismatch, size_mismatch, transfer_stuck, host_stuck, input_stall,
    device_error, not_hung, undetermined. `since` is milliseconds since the epoch on the waiting rank's own clock.
    """

    verdict: str = "undetermined"
    root_ranks: list[int] = field(default_factory=list)
    suspects: list[dict[str, Any]] = field(default_factory=list)
    process_group: str | None = None
    op: str | None = None
    seq: int | None = None
    since_ms: int | None = None
    waiting: list[int] = field(default_factory=list)
    no_log: list[int] = field(default_factory=list)
    stack: str | None = None
    confidence: float = 0.0
    sentence: str = ""
    #: What a log says failed; part of the sentence.
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the public form: the object that `flightwatch hang` prints."""
        return {
            "verdict": self.verdict,
            "root_ranks": self.root_ranks,
            "suspects": self.suspects,
            "process_group": self.process_group,
            "op": self.op,
            "seq": self.seq,
            "since": iso_utc(self.since_ms),
            "waiting": self.waiting,
            "no_log": self.no_log,
            "stack": self.stack,
            "confidence": round(self.confidence, 2),
            "sentence": self.sentence,
        }

    def suspect(self, rank: int, score: float, why: str) -> None:
        """Add a suspect unless the rank is one already or the list is full."""
        if len(self.suspects) < SUSPECT_LIMIT and all(known["rank"] != rank for known in self.suspects):
            self.suspects.append({"rank": rank, "score": round(score, 2), "why": why})


def rank_list(ranks: Sequence[int], limit: int = 8) -> str:
    """Render ranks as "rank 3", "ranks 3, 7-9" or "ranks 0-3 and 28 more"."""
    spans: list[str] = []
    start = 0
    for index in range(1, len(ranks) + 1):
        if index == len(ranks) or ranks[index] != ranks[index - 1] + 1:
            first, last = ranks[start], ranks[index - 1]
            spans.append(str(first) if first == last else f"{first}-{last}")
            start = index
    text = ", ".join(spans[:limit])
    if len(spans) > limit:
        text += f" and {len(spans) - limit} more"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text}"


def sentence(verdict: HangVerdict) -> str:
    """Say who, in which collective, where its stack stands and how sure, in one sentence."""
    where = f"{verdict.op} {verdict.seq}" if verdict.op and verdict.seq is not None else "a collective"
    if verdict.process_group:
        where += f" of {verdict.process_group}"
    text = _capital(_statement(verdict, where))
    if verdict.reason and verdict.verdict in ("device_error", "host_stuck", "transfer_stuck", "missing_rank"):
        text += f": {verdict.reason}"
    if verdict.no_log and verdict.verdict != "not_hung":
        text += f"; nothing was heard from {rank_list(verdict.no_log)}"
    if verdict.stack:
        text += f"; its stack stands at {verdict.stack.split(' < ')[0]}"
    return f"{text} (confidence {verdict.confidence:.0%})."


def _statement(verdict: HangVerdict, where: str) -> str:
    roots = rank_list(verdict.root_ranks) if verdict.root_ranks else ""
    waiting = rank_list(verdict.waiting) if verdict.waiting else "nobody"
    plural = len(verdict.waiting) > 1
    if verdict.verdict == "missing_rank":
        return f"{waiting} {'wait' if plural else 'waits'} in {where} for {roots}, which never arrived"
    if verdict.verdict == "op_mismatch":
        return f"{roots} called something else than the others at {where}"
    if verdict.verdict == "size_mismatch":
        return f"{roots} passed another size than the others to {where}"
    if verdict.verdict == "transfer_stuck":
        if verdict.reason and not verdict.op:
            return f"a transfer failed under {roots}" if roots else "a transfer failed"
        first = f", first at {roots}" if roots else ""
        return f"all members joined {where} and it does not finish: look at links and devices{first}"
    if verdict.verdict == "host_stuck":
        return f"the host side of {roots or 'a rank'} is stuck, not the network"
    if verdict.verdict == "input_stall":
        return f"{roots or 'a rank'} waits for input data"
    if verdict.verdict == "device_error":
        return f"a device failed under {roots}" if roots else "a device failed"
    if verdict.verdict == "not_hung":
        return "every recorded collective has finished: nothing in this evidence hangs"
    if verdict.waiting:
        return f"{waiting} {'are' if plural else 'is'} stuck in {where}; this evidence does not name the culprit"
    return "this evidence does not show who hangs"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

"""Which statements of a cycle are new: one row on raise, on change and on clear, never one per cycle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from flightwatch.core.vocabulary import FindingState
from flightwatch.detectors.contract import Finding


@dataclass
class _Open:
    detector: str
    mark: tuple[object, ...]
    last: Finding
    seen_at_ms: int
    first_seen_at: int | None


class FindingTracker:
    """Remembers what was said. Ids are deterministic, so two trackers over the same data say the same."""

    def __init__(self, clear_after_seconds: float) -> None:
        self._clear_after_ms = clear_after_seconds * 1000
        self._open: dict[str, _Open] = {}
        self._closed: set[str] = set()

    def remember(self, last: Finding, now_ms: int, first_seen_at: int | None) -> None:
        """Take over a finding that an earlier process left open, as that one stated it last."""
        self._open[last.id] = _Open(last.detector, mark_of(last), last, now_ms, first_seen_at)

    def drop(self, column: str, value: str) -> None:
        """Forget, without a word, what was stated about a cluster or job that is erased."""
        gone = [id_ for id_, one in self._open.items() if getattr(one.last, column) == value]
        for id_ in gone:
            del self._open[id_]

    def forget(self, detectors: Iterable[str]) -> None:
        """Forget what these detectors stated: it is said as new when they state it again."""
        gone = set(detectors)
        self._open = {id_: one for id_, one in self._open.items() if one.detector not in gone}

    def earliest_onset_ms(self) -> int | None:
        """Return since when the oldest open finding has evidence: windows reach back that far."""
        onsets = [one.first_seen_at for one in self._open.values() if one.first_seen_at is not None]
        return min(onsets, default=None)

    def fresh(self, findings: Iterable[Finding], ran: set[str], before_ms: int, now_ms: int) -> list[Finding]:
        """Return what must be published.

        Parameters
        ----------
        findings: everything the detectors stated about their windows, past statements included.
        ran: detectors that did not fail; only theirs are cleared when they are stated no more.
        before_ms: data time of the cycle before; an episode that ended before it is history.
        """
        new: list[Finding] = []
        history: dict[str, list[Finding]] = {}
        for finding in findings:
            history.setdefault(finding.id, []).append(finding)
        for id_, statements in history.items():
            new += self._of_finding(id_, statements, before_ms, now_ms)
        for id_, one in list(self._open.items()):
            if id_ in history or one.detector not in ran or now_ms - one.seen_at_ms <= self._clear_after_ms:
                continue
            del self._open[id_]
            text = f"{one.last.summary.rstrip('.')}: no longer stated."
            new.append(replace(one.last, state=FindingState.CLEARED, detected_at=now_ms, summary=text))
        return new

    def _of_finding(self, id_: str, statements: list[Finding], before_ms: int, now_ms: int) -> list[Finding]:
        last = statements[-1]
        known = self._open.get(id_)
        if last.state == FindingState.CLEARED:
            ended = (last.detected_at or 0) > before_ms and id_ not in self._closed
            self._open.pop(id_, None)
            self._closed.add(id_)
            if known is not None:
                return [last]
            # Raised and over between two cycles: said in full, once.
            return statements if ended else []
        self._closed.discard(id_)
        if known is None:
            self._open[id_] = _Open(last.detector, mark_of(last), last, now_ms, last.first_seen_at)
            return [replace(last, state=FindingState.RAISED)]
        changed = known.mark != mark_of(last)
        self._open[id_] = _Open(last.detector, mark_of(last), last, now_ms, known.first_seen_at)
        return [replace(last, state=FindingState.CHANGED)] if changed else []


def mark_of(finding: Finding) -> tuple[object, ...]:
    """Return what counts as a change: class, targets, severity."""
    return (finding.class_, tuple(finding.targets), finding.severity.value)

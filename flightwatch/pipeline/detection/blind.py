"""The "blind" rule: when the pipeline is behind, silence means nothing, and that is said once.

Behind is: the bus holds rows that ingest has not stored for some time, or nothing at all has arrived for some time
although something had. While blind, detectors that judge absence do not run, so that they neither raise nor clear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flightwatch.core.clock import iso_utc
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding

#: Detectors that say something because rows are missing.
JUDGE_ABSENCE = frozenset(("dead_node", "coverage"))
#: What says that rows are missing is said when it was so for this long: rows of some nodes come before those of others.
HOLD_SECONDS = 60.0
NAME, VERSION = "pipeline", "1"
SETTLE_SECONDS = 120.0


@dataclass(frozen=True)
class Sight:
    """What can be seen now.

    Attributes
    ----------
    blind: absence means nothing. said: what changed since the last look (raised or cleared), to be published.
    """

    blind: bool
    said: tuple[Finding, ...] = ()


class BlindWatch:
    """Judges once a cycle.

    Parameters
    ----------
    blind_after_s: how far behind is too far. behind_s: ingest's lag on the bus in seconds, None when unknown or not
    looked at. settle_s: so long after catching up absence is still not judged: not every agent comes back at once.
    """

    def __init__(
        self,
        cluster: str,
        blind_after_s: float,
        behind_s: Callable[[], float | None] | None = None,
        settle_s: float = SETTLE_SECONDS,
    ) -> None:
        self._settle_ms, self._settled_ms = settle_s * 1000, 0.0
        self._cluster, self._after_s, self._behind_s = cluster, blind_after_s, behind_s
        self._open: Finding | None = None
        self._began_ms: int | None = None

    def take_over(self, finding: Finding) -> None:
        """Take over the blindness that an earlier process left open: the next look says whether it is over."""
        if self._open is None and finding.cluster == self._cluster:
            self._open = finding

    def look(self, now_ms: int, received_ms: int | None) -> Sight:
        """Judge by the newest arrival (None: nothing ever arrived) and by the lag.

        Silence counts from the first look on: before it, this process was not there to see.
        """
        if self._began_ms is None:
            self._began_ms = now_ms
        why = self._why(now_ms, received_ms)
        if why is None and self._open is not None:
            minutes = (now_ms - (self._open.first_seen_at or now_ms)) / 60_000
            text = f"Flightwatch sees again after {minutes:.1f} minutes: what was sent meanwhile is judged now."
            over = replace(self._open, state=FindingState.CLEARED, detected_at=now_ms, summary=text)
            self._open, self._settled_ms = None, now_ms + self._settle_ms
            return Sight(self._settle_ms > 0, (over,))
        if why is not None and self._open is None:
            self._open = self._finding(now_ms, received_ms, *why)
            return Sight(True, (self._open,))
        return Sight(why is not None or now_ms < self._settled_ms)

    def _why(self, now_ms: int, received_ms: int | None) -> tuple[float, str] | None:
        try:
            lag = self._behind_s() if self._behind_s is not None else None
        except FlightwatchError as error:
            return 0.0, f"the bus does not answer ({error})"
        if lag is not None and lag > self._after_s:
            return lag, f"ingest is {lag:.0f} s behind the bus"
        if received_ms is None:
            return None
        silent = (now_ms - max(received_ms, self._began_ms or 0)) / 1000
        return (silent, f"nothing has arrived for {silent:.0f} s") if silent > self._after_s else None

    def _finding(self, now_ms: int, received_ms: int | None, seconds: float, why: str) -> Finding:
        since = now_ms - round(seconds * 1000)
        return Finding(
            detector=NAME,
            detector_version=VERSION,
            kind=FindingKind.BLIND,
            scope=FindingScope.PIPELINE,
            summary=f"Flightwatch is blind since {iso_utc(since)}: {why}; absence is not judged, nothing is acted on.",
            score=round(seconds, 1),
            threshold=self._after_s,
            severity=Severity.P2,
            detected_at=now_ms,
            first_seen_at=since,
            cluster=self._cluster,
            targets=("pipeline",),
            blames_hardware=False,
            confidence=1.0,
            evidence={"newest_arrival": iso_utc(received_ms), "lag_seconds": round(seconds, 1)},
            aspect=str(since // 60_000),
        )

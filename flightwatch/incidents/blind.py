"""The blind rule: while rows are stored late, silence means nothing, and one incident says so."""

from __future__ import annotations

from collections.abc import Iterable

from flightwatch.core.clock import iso_utc
from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.incidents.grouping import Member
from flightwatch.incidents.settings import IncidentSettings
from flightwatch.incidents.statements import Known, Statement, ending_of, statement_of_finding

DETECTOR = "engine"
#: Sight is back when the lag is below this share of the limit.
_BACK = 0.5


class BlindWatch:
    """Follows how far storing is behind, and states when Flightwatch goes blind and sees again.

    Parameters
    ----------
    settings: the limit. cluster: whose incident it is.
    """

    def __init__(self, settings: IncidentSettings, cluster: str) -> None:
        self._cluster = cluster
        self._limit = settings.blind_after_seconds
        self.blind = False

    def statements(self, behind_seconds: float | None, now_ms: int, held: Iterable[Member]) -> list[Statement]:
        """Return what must be said now.

        Parameters
        ----------
        behind_seconds: lag of storing, None when it is not known yet.
        held: findings of kind blind; one of an engine before this one ends here too.
        """
        if behind_seconds is None:
            return []
        stated = [one for one in held if isinstance(one, Known) and one.active]
        if behind_seconds > self._limit or (self.blind and behind_seconds > _BACK * self._limit):
            self.blind = True
            if stated:
                return []
            return [self._statement(now_ms - round(behind_seconds * 1000), now_ms)]
        self.blind = False
        return [ending_of(one, now_ms) for one in stated]

    def _statement(self, since_ms: int, now_ms: int) -> Statement:
        since = (iso_utc(since_ms) or "")[:16].replace("T", " ")
        finding = Finding(
            detector=DETECTOR, detector_version="1", kind=FindingKind.BLIND, scope=FindingScope.PIPELINE,
            summary=f"Flightwatch is blind since {since} UTC: rows are stored late, so silence is not judged and"
            " no action is proposed.",
            score=(now_ms - since_ms) / 1000, threshold=self._limit, severity=Severity.P2, detected_at=now_ms,
            first_seen_at=since_ms, targets=("pipeline",), confidence=1.0, aspect=since,
        )  # fmt: skip
        return statement_of_finding(finding, self._cluster, now_ms)

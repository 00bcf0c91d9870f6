"""What people changed about detectors, and how often findings asked agents for more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sqlalchemy as sa

from flightwatch.pipeline.control.schema_detection import DETECTOR_REQUESTS, DETECTOR_SETTINGS

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control

#: What a detector may do: run, run and only log, or not run.
MODES = ("on", "shadow", "off")
#: Requests older than this count for no limit and are forgotten.
_REMEMBERED_MS = 2 * 86_400_000


@dataclass(frozen=True, slots=True)
class DetectorSetting:
    """What was changed about one detector.

    Attributes
    ----------
    mode: one of MODES, None leaves it to the configuration file. thresholds: dotted name to value.
    """

    detector: str
    mode: str | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    changed_at_ms: int = 0
    changed_by: str = ""


class DetectorSettings:
    """Reads and changes settings of detectors; running loops follow within a cycle.

    Each call is one transaction. Raises TransientError when the database is away.
    """

    def __init__(self, control: Control) -> None:
        self._control = control

    def all(self) -> dict[str, DetectorSetting]:
        """Return detector name to what was changed; detectors that nobody touched are absent."""
        with self._control.reading() as connection:
            rows = connection.execute(sa.select(DETECTOR_SETTINGS)).all()
        return {
            row.detector: DetectorSetting(
                row.detector, row.mode or None, json.loads(row.thresholds), row.changed_at_ms, row.changed_by
            )
            for row in rows
        }

    def set_mode(self, detector: str, mode: str | None, actor: str) -> None:
        """Let a detector run, run in shadow, or stop; None leaves it to the configuration file again."""
        self._change(detector, actor, mode=mode or "")

    def set_threshold(self, detector: str, name: str, value: float, actor: str) -> None:
        """Change one threshold; the caller has checked that the detector takes it."""
        self._change(detector, actor, thresholds={name: value})

    def reset(self, detector: str) -> bool:
        """Forget everything that was changed about a detector; say whether there was anything."""
        with self._control.transaction() as connection:
            done = connection.execute(sa.delete(DETECTOR_SETTINGS).where(DETECTOR_SETTINGS.c.detector == detector))
            return bool(done.rowcount)

    def _change(
        self, detector: str, actor: str, mode: str | None = None, thresholds: Mapping[str, float] | None = None
    ) -> None:
        with self._control.transaction() as connection:
            here = DETECTOR_SETTINGS.c.detector == detector
            row = connection.execute(sa.select(DETECTOR_SETTINGS).where(here).with_for_update()).one_or_none()
            known = json.loads(row.thresholds) if row is not None else {}
            values = {
                "mode": mode if mode is not None else (row.mode if row is not None else ""),
                "thresholds": json.dumps(known | dict(thresholds or {}), sort_keys=True),
                "changed_at_ms": self._control.now_ms(connection),
                "changed_by": actor,
            }
            if row is None:
                connection.execute(sa.insert(DETECTOR_SETTINGS).values(detector=detector, **values))
            else:
                connection.execute(sa.update(DETECTOR_SETTINGS).where(here).values(**values))


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How often findings may ask agents for something.

    Attributes
    ----------
    job_seconds: shortest time between two requests about one job. per_hour: requests of the whole installation.
    """

    job_seconds: float
    per_hour: int


class DetectorRequests:
    """Counts requests of one installation, so that limits hold over all detection processes and restarts."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def take(self, kind: str, cluster: str, job: str, finding: str, limits: RequestLimits) -> str | None:
        """Note a request if the limits allow it; return why not, None when it may be sent.

        One finding asks once, whoever states it again. Raises TransientError when the database is away.
        """
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            table = DETECTOR_REQUESTS.c
            connection.execute(sa.delete(DETECTOR_REQUESTS).where(table.requested_at_ms < now_ms - _REMEMBERED_MS))
            mine = sa.select(sa.func.count()).select_from(DETECTOR_REQUESTS).where(table.kind == kind)
            of_job = (table.cluster == cluster, table.job == job)
            since_ms = now_ms - round(limits.job_seconds * 1000)
            if connection.execute(mine.where(table.finding == finding)).scalar_one():
                return "it was asked for already"
            if connection.execute(mine.where(*of_job, table.requested_at_ms > since_ms)).scalar_one():
                return f"job {job} was asked within the last {limits.job_seconds:.0f} s"
            if (
                connection.execute(mine.where(table.requested_at_ms > now_ms - 3_600_000)).scalar_one()
                >= limits.per_hour
            ):
                return f"{limits.per_hour} were asked for within the last hour"
            connection.execute(
                sa.insert(DETECTOR_REQUESTS).values(
                    kind=kind, cluster=cluster, job=job, finding=finding, requested_at_ms=now_ms
                )
            )
            return None

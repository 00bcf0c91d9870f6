"""Who must hear of an incident and when, what keeps it quiet, and when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flightwatch.core.incident import AlertReason
from flightwatch.core.vocabulary import FindingKind
from flightwatch.detectors.joint import Places
from flightwatch.incidents.grouping import Group, Grouping
from flightwatch.incidents.quiet import Inhibitors, silence_for
from flightwatch.incidents.settings import IncidentSettings
from flightwatch.incidents.settle import Settlement, targets_of
from flightwatch.incidents.severity import SLOWING
from flightwatch.incidents.statements import Known
from flightwatch.incidents.view import members_of, worse
from flightwatch.pipeline.control.engine_writes import EngineTransaction
from flightwatch.pipeline.control.incident_rows import OPEN_STATES

#: All open incidents are looked at this often; when the first message of one is due, so soon after the last look.
_LOOK_MS, _SOON_MS = 1_000, 50
_NEVER_MS = 2**62
#: Losses and progress are worked out anew this often.
_REFRESH_MS = 15_000
_MINUTE_MS = 60_000
#: Changes that people hear of once they have heard of the incident.
_TOLD = ("root_finding", "progress", "node", "kind")


class Attention:
    """Decides by time. Keeps only what may be lost: after a restart it is worked out anew."""

    def __init__(self, settings: IncidentSettings) -> None:
        self._settings = settings
        self._looked_ms = 0
        self._next_ms = _NEVER_MS
        self._waiting: dict[str, int] = {}
        self._openings: deque[int] = deque(maxlen=max(1, settings.storm_incidents))
        self._refreshed: dict[str, int] = {}
        self._told: dict[str, tuple[object, ...]] = {}

    def restart(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Begin with the incidents that the database holds; those nobody heard of wait for their message at once."""
        self._waiting = {row["id"]: 0 for row in rows if row["state"] in OPEN_STATES and not row["thread"]}
        self._told = {row["id"]: _telling(row) for row in rows if row["thread"]}
        self._refreshed.clear()
        self._looked_ms = 0

    def opened(self, ids: Sequence[str], now_ms: int) -> None:
        """Note incidents that just opened: people hear when their findings had time to gather."""
        for id_ in ids:
            self._openings.append(now_ms)
            self._waiting[id_] = now_ms
        if ids:
            self._next_ms = min(self._next_ms, now_ms + round(self._settle_ms(now_ms)))

    def due_in_ms(self, now_ms: int) -> int:
        """Return how long it is until open incidents must be looked at; 0: now."""
        if now_ms < self._looked_ms:
            return 0  # the clock was set back
        return max(0, min(self._looked_ms + _LOOK_MS, max(self._looked_ms + _SOON_MS, self._next_ms)) - now_ms)

    def to_refresh(
        self, rows: Mapping[str, Mapping[str, Any]], group_of: Mapping[str, Group], now_ms: int
    ) -> list[str]:
        """Return open incidents whose loss and progress are old."""
        due = [
            id_ for id_ in group_of
            if id_ in rows and rows[id_]["state"] in OPEN_STATES
            and not 0 <= now_ms - self._refreshed.get(id_, 0) < _REFRESH_MS
        ]  # fmt: skip
        self._refreshed = {id_: at for id_, at in self._refreshed.items() if id_ in group_of}
        self._refreshed |= dict.fromkeys(due, now_ms)
        return due

    def over(self, settlement: Settlement, grouping: Grouping, *, blind: bool, now_ms: int) -> list[str]:
        """Return open incidents whose evidence has been gone long enough; none while absence is not judged."""
        if blind:
            return []
        half_seen = {
            one.job
            for one in grouping.of_kind(FindingKind.COVERAGE)
            if isinstance(one, Known) and one.active and one.job
        }
        timing = {kind.value for kind in SLOWING}
        return [
            id_ for id_ in self._ended(settlement, now_ms)
            if not (settlement.rows[id_]["job"] in half_seen and settlement.rows[id_]["kind"] in timing)
        ]  # fmt: skip

    def look(self, tx: EngineTransaction, settlement: Settlement, places: Places) -> None:
        """Set what keeps incidents quiet, and note the messages that are due."""
        self._looked_ms = tx.now_ms
        rows = [row for row in settlement.rows.values() if row["state"] in OPEN_STATES and row["merged_into"] is None]
        silences = tx.silences()
        parsed = [row | {"targets": targets_of(row)} for row in rows]
        inhibitors = Inhibitors(parsed, places)
        pending = tx.waiting_for_message([row["id"] for row in rows if row["thread"]])
        for row, plain in zip(rows, parsed, strict=True):
            silenced = silence_for(row, plain["targets"], silences, places)
            inhibited = inhibitors.inhibitor_of(row)
            if (silenced, inhibited) != (row["silenced_by"], row["inhibited_by"]):
                detail = {"silenced_by": silenced, "inhibited_by": inhibited}
                row = tx.change(row, detail, "quiet" if silenced or inhibited else "loud", detail)
                settlement.rows[row["id"]] = row
            settlement.rows[row["id"]] = self._tell(tx, row, pending)
        alive = {row["id"] for row in rows}
        self._waiting = {id_: at for id_, at in self._waiting.items() if id_ in alive}
        # What is kept quiet beyond its time waits for no moment: the ordinary look finds when it may be told.
        settle_ms = round(self._settle_ms(tx.now_ms))
        coming = (at + settle_ms for at in self._waiting.values() if at + settle_ms > tx.now_ms)
        self._next_ms = min(coming, default=_NEVER_MS)
        self._told = {id_: one for id_, one in self._told.items() if id_ in settlement.rows}

    def _tell(self, tx: EngineTransaction, row: dict[str, Any], pending: set[str]) -> dict[str, Any]:
        if row["silenced_by"] or row["inhibited_by"] or row["stale"]:
            return row
        if not row["thread"]:
            # Less than nothing: the clock was set back since.
            if 0 <= tx.now_ms - self._waiting.get(row["id"], 0) < self._settle_ms(tx.now_ms):
                return row
            self._waiting.pop(row["id"], None)
            self._told[row["id"]] = _telling(row)
            heard = {"thread": row["id"], "announced_severity": row["severity"]}
            row = tx.touch(row, heard, project=False)
            tx.need(row, AlertReason.OPENED)
            return row
        self._waiting.pop(row["id"], None)
        if worse(row["severity"], row["announced_severity"]):
            tx.need(row, AlertReason.WORSENED, {"severity": [row["announced_severity"], row["severity"]]})
            self._told[row["id"]] = _telling(row)
            return tx.touch(row, {"announced_severity": row["severity"]}, project=False)
        if self._told.setdefault(row["id"], _telling(row)) != _telling(row) and row["id"] not in pending:
            tx.need(row, AlertReason.CHANGED, {"before": dict(zip(_TOLD, self._told[row["id"]], strict=True))})
            self._told[row["id"]] = _telling(row)
            return row
        return row

    def _settle_ms(self, now_ms: int) -> float:
        """Return how long a new incident waits for more findings: longer while many open."""
        storm = len(self._openings) == self._openings.maxlen and 0 <= now_ms - self._openings[0] < _MINUTE_MS
        return 1000 * (self._settings.storm_settle_seconds if storm else self._settings.settle_seconds)

    def _ended(self, settlement: Settlement, now_ms: int) -> list[str]:
        ended = []
        for id_, group in settlement.group_of.items():
            row = settlement.rows.get(id_)
            if row is None or row["state"] not in OPEN_STATES:
                continue
            members = members_of(group)
            if any(one.active and one.severe for one in members):
                continue
            last = max((one.cleared_at or one.stated_at for one in members if one.severe), default=0)
            hold = self._settings.flap_hold_seconds if row["reopened"] else self._settings.resolve_after_seconds
            if now_ms - last >= hold * 1000:
                ended.append(id_)
        return sorted(ended)


def _telling(row: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in _TOLD)

"""The incident engine: statements of findings in, incidents and due messages out, one transaction a batch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flightwatch.core.clock import Clock
from flightwatch.core.incident import IncidentState
from flightwatch.core.vocabulary import FindingKind, FindingState, Severity
from flightwatch.incidents.attention import Attention
from flightwatch.incidents.blind import BlindWatch
from flightwatch.incidents.context import Context
from flightwatch.incidents.grouping import Group, Grouping, place_key
from flightwatch.incidents.settings import IncidentSettings
from flightwatch.incidents.settle import Settlement
from flightwatch.incidents.statements import Known, Statement, ending_of, known_of, known_of_row, restate, row_of
from flightwatch.incidents.view import view_of, why
from flightwatch.pipeline.control.engine_writes import EngineTransaction, EngineWrites
from flightwatch.pipeline.control.incident_rows import OPEN_STATES
from flightwatch.pipeline.control.leases import Lease

log = logging.getLogger(__name__)

#: Clearings of findings that are not known yet are remembered, this many.
_MOST_EARLY = 10_000
#: Share of the findings given up when memory is full.
_GIVEN_UP = 0.05
Positions = Mapping[tuple[str, int], tuple[str, int]]


@dataclass
class Counters:
    """What the engine did since it began to hold the role."""

    statements: int = 0
    opened: int = 0
    resolved: int = 0
    given_up: int = 0


class Engine:
    """Groups statements and keeps incidents. Used by one thread, which holds the lease.

    All truth is in the control database; what is in memory can be read from there again. Statements may be taken
    twice, by this engine or by another one: the second time changes nothing.
    """

    def __init__(
        self, writes: EngineWrites, context: Context, clock: Clock, settings: IncidentSettings, cluster: str
    ) -> None:
        self._writes, self._context, self._clock, self._settings = writes, context, clock, settings
        self._attention = Attention(settings)
        self._blind = BlindWatch(settings, cluster)
        self.counters = Counters()
        self._grouping: Grouping | None = None
        self._places = context.view.places
        self._settlement = Settlement(self._view)
        self._muted: dict[tuple[object, ...], tuple[int, str]] = {}
        self._early: dict[str, int] = {}
        self._fast: set[str] = set()
        self._sequence = 0
        self._recovered_sequence = 0
        #: The database's clock before this machine's.
        self._ahead_ms = 0

    @property
    def blind(self) -> bool:
        """Say whether storing is so far behind that absence means nothing."""
        return self._blind.blind

    def forget_memory(self) -> None:
        """Read everything from the database again before the next batch: another engine may have written."""
        self._grouping = None

    def due_in_seconds(self) -> float:
        """Return in how many seconds `cycle` has something to do even when nothing arrives; 0: now."""
        return self._attention.due_in_ms(self._clock.now_ms() + self._ahead_ms) / 1000

    def cycle(self, lease: Lease, statements: Sequence[Statement], positions: Positions) -> bool:
        """Take a batch in, and do what is due by time; say whether a message became due.

        Parameters
        ----------
        positions: how far the bus was read with this batch, see `EngineTransaction.advance`.

        Raises
        ------
        TransientError, StaleGeneration: nothing of this batch was written; it must come again.
        """
        if not statements and not positions and self.due_in_seconds() > 0:
            return False
        try:
            grouping = self._ready()
            with self._writes.transaction(lease) as tx:
                self._ahead_ms = tx.now_ms - self._clock.now_ms()
                self._follow_people(tx, grouping)
                own = self._blind.statements(
                    self._context.behind_seconds(), tx.now_ms, grouping.of_kind(FindingKind.BLIND)
                )
                own += self._unconfirmed(tx.now_ms)
                rows, fresh = self._absorb(tx, grouping, [*statements, *own])
                changed = grouping.changed()
                opened, settled = self._settlement.settle(tx, changed, fresh)
                self._write(tx, rows, settled)
                self._by_time(tx, grouping, opened)
                if len(grouping.members) > self._settings.most_findings:
                    self._give_up(grouping)
                tx.advance(positions)
        except BaseException:
            self._grouping = None
            raise
        self.counters.statements += len(statements)
        self.counters.opened += len(opened)
        return tx.needs_written > 0

    # -- memory

    def _ready(self) -> Grouping:
        """Return the groups, read from the database where they are not in memory or the cluster has changed."""
        places, grouping = self._context.view.places, self._grouping
        if grouping is None:
            self._places = places
            grouping = self._recover()
        elif places is not self._places:
            if not places.same(self._places):
                grouping = grouping.moved(places)
                self._settlement.group_of.clear()
            self._places = places
        self._grouping = grouping
        return grouping

    def _recover(self) -> Grouping:
        now_ms, settings = self._clock.now_ms(), self._settings
        longest = max(settings.flap_hold_seconds, settings.false_positive_seconds)
        incidents, findings, last = self._writes.held(now_ms - round(longest * 1000), settings.most_findings)
        grouping = Grouping(self._places, settings.crowd_nodes)
        state = {row["id"]: row for row in incidents}
        stale_before = now_ms - round(settings.stale_after_seconds * 1000)
        self._muted.clear()
        for row in findings:
            known = known_of_row(row, stale_before)
            owner = state.get(row["incident"])
            if owner is not None and owner["state"] == IncidentState.FALSE_POSITIVE.value:
                self._mute(known, owner)
            elif owner is None or owner["state"] in OPEN_STATES or self._in_hold(owner, now_ms):
                known.placed = (row["incident"], row["parent"])
                known.incident = row["incident"] or None
                grouping.add(known)
                if known.fast:
                    self._fast.add(known.id)
        self._settlement = Settlement(self._view)
        held = Counter(one.incident for one in grouping.members.values())
        for row in incidents:
            self._settlement.given_up[row["id"]] = max(0, row["findings_count"] - held[row["id"]])
        self._attention.restart(incidents)
        self._sequence = self._recovered_sequence = last
        return grouping

    def _in_hold(self, row: Mapping[str, Any], now_ms: int) -> bool:
        closed = row["closed_at_ms"]
        return closed is not None and now_ms - closed <= self._settings.flap_hold_seconds * 1000

    def _mute(self, known: Known, row: Mapping[str, Any]) -> None:
        until = (row["closed_at_ms"] or 0) + round(self._settings.false_positive_seconds * 1000)
        self._muted[place_key(known)] = (until, row["id"])

    def _view(self, group: Group) -> Mapping[str, Any]:
        return view_of(group, self._context.view, self._context.slowdown, self._settings, self._clock.now_ms())

    def _follow_people(self, tx: EngineTransaction, grouping: Grouping) -> None:
        """Take over what people decided since the last batch: merges and false alarms change the groups."""
        for sequence, incident, event in tx.people_since(self._sequence):
            if sequence <= self._recovered_sequence:
                continue
            self._sequence = max(self._sequence, sequence)
            if event == "merged":
                self._follow_merge(tx, grouping, incident)
            elif event == IncidentState.FALSE_POSITIVE.value:
                rows = tx.incidents([incident])
                if incident in rows and rows[incident]["state"] == event:
                    mine = [one for one in grouping.members.values() if one.incident == incident]
                    for one in mine:
                        if isinstance(one, Known):
                            self._mute(one, rows[incident])
                    grouping.forget([one.id for one in mine])
            elif event == "reopened":
                # The alarm was right after all: its findings count again.
                self._muted = {key: value for key, value in self._muted.items() if value[1] != incident}
                for row in tx.findings_of(incident).values():
                    known = known_of_row(row, tx.now_ms - round(self._settings.stale_after_seconds * 1000))
                    known.placed = (row["incident"], row["parent"])
                    grouping.add(known)

    def _follow_merge(self, tx: EngineTransaction, grouping: Grouping, incident: str) -> None:
        for id_, row in tx.findings_of(incident).items():
            held = grouping.members.get(id_)
            if isinstance(held, Known):
                held.incident = row["incident"]
                held.placed = (row["incident"], held.placed[1])
                if row["pin"] is not None:
                    grouping.pin(id_, row["pin"])

    # -- statements

    def _absorb(
        self, tx: EngineTransaction, grouping: Grouping, statements: Sequence[Statement]
    ) -> tuple[dict[str, Statement], list[Known]]:
        """Take statements in; return those whose rows must be written, and the findings that are new."""
        write: dict[str, Statement] = {}
        fresh: list[Known] = []
        unknown: list[Statement] = []
        for one in sorted(statements, key=lambda each: (each.detected_at, each.id)):
            known = grouping.members.get(one.id)
            if isinstance(known, Known):
                if self._restate(grouping, known, one, tx.now_ms):
                    write[one.id] = one
            elif one.state is FindingState.CLEARED or self._is_muted(one, tx.now_ms):
                unknown.append(one)
            elif self._early.get(one.id, -1) < one.detected_at:
                if one.fast:
                    self._fast.add(one.id)
                made = known_of(one, tx.now_ms, self._is_stale(one, tx.now_ms))
                grouping.add(made)
                fresh.append(made)
                write[one.id] = one
        self._store_unknown(tx, unknown)
        return write, fresh

    def _unconfirmed(self, now_ms: int) -> list[Statement]:
        """Return the end of findings made from events that the detection loop did not state in time."""
        grouping, ended = self._grouping, []
        patience = round(self._settings.unconfirmed_seconds * 1000)
        for id_ in list(self._fast):
            known = grouping.members.get(id_) if grouping is not None else None
            if not isinstance(known, Known) or not known.fast or not known.active:
                self._fast.discard(id_)
            elif now_ms - known.raised_ms > patience:
                ended.append(ending_of(known, now_ms))
        return ended

    def _is_stale(self, one: Statement, now_ms: int) -> bool:
        return now_ms - one.detected_at > self._settings.stale_after_seconds * 1000

    def _restate(self, grouping: Grouping, known: Known, one: Statement, now_ms: int) -> bool:
        """Take a further statement of a known finding over; False when it says nothing new."""
        if one.state is not FindingState.CLEARED and one.detected_at < known.detected_at:
            grouping.earlier(known, one.detected_at)
            return True
        if one.detected_at < known.stated_at:
            return False
        if one.state is FindingState.CLEARED:
            if not known.active:
                return False
            restate(known, one, now_ms, stale=False)
            grouping.touch(known)
            return True
        same = (known.severity, known.class_, known.targets, known.score) == (
            one.severity, one.class_, one.targets, one.score,
        )  # fmt: skip
        if known.active and same and known.fast == one.fast:
            return False
        severe = one.severity is not Severity.INFO
        if one.class_ != known.class_ or one.targets != known.targets or (severe and not known.severe):
            grouping.forget([known.id])
            restate(known, one, now_ms, self._is_stale(one, now_ms))
            known.severe = known.severe or severe
            grouping.add_again(known)
            return True
        restate(known, one, now_ms, self._is_stale(one, now_ms))
        grouping.touch(known)
        return True

    def _is_muted(self, one: Statement, now_ms: int) -> bool:
        if not self._muted:
            return False
        until, _ = self._muted.get(place_key(known_of(one, now_ms, stale=False)), (0, ""))
        return now_ms < until

    def _store_unknown(self, tx: EngineTransaction, statements: Sequence[Statement]) -> None:
        """Store statements that change no group: of false alarms, and clearings of findings held no more."""
        if not statements:
            return
        stored = tx.findings([one.id for one in statements])
        rows = []
        for one in statements:
            row = stored.get(one.id)
            if row is not None:
                cleared = one.detected_at if one.state is FindingState.CLEARED else None
                rows.append(row | {"state": one.state.value, "stated_at_ms": one.detected_at, "cleared_at_ms": cleared})
            elif one.state is FindingState.CLEARED:
                if len(self._early) >= _MOST_EARLY:
                    self._early.pop(next(iter(self._early)))
                self._early[one.id] = one.detected_at
            else:
                known = known_of(one, tx.now_ms, stale=False)
                known.incident = self._muted[place_key(known)][1]
                rows.append(row_of(one, known, ""))
        tx.write_findings(rows)

    def _give_up(self, grouping: Grouping) -> None:
        """Drop the consequences that were stated longest ago: the database keeps them, their group goes on."""
        count = round(len(grouping.members) * _GIVEN_UP) + len(grouping.members) - self._settings.most_findings
        leaves = [one for one in grouping.leaves() if isinstance(one, Known)]
        leaves.sort(key=lambda one: (one.active, one.stated_at))
        for one in leaves[:count]:
            if one.incident is not None:
                self._settlement.given_up[one.incident] += 1
        grouping.forget([one.id for one in leaves[:count]])
        self.counters.given_up += len(leaves[:count])

    def _write(self, tx: EngineTransaction, statements: Mapping[str, Statement], settled: Sequence[Group]) -> None:
        grouping = self._grouping
        if grouping is None:
            return
        rows = []
        for id_, one in statements.items():
            known = grouping.members.get(id_)
            if isinstance(known, Known):
                rows.append(row_of(one, known, why(known)))
                known.placed = (known.incident, None if known.parent is None else known.parent.id)
        tx.write_findings(rows)
        self._settlement.place(tx, settled, set(statements))

    # -- time

    def _by_time(self, tx: EngineTransaction, grouping: Grouping, opened: Sequence[str]) -> None:
        """Do what is due by time: messages, silences, losses, endings, forgetting."""
        attention, settlement = self._attention, self._settlement
        attention.opened(opened, tx.now_ms)
        if attention.due_in_ms(tx.now_ms) > 0:
            return
        settlement.load_open(tx)
        for id_ in attention.to_refresh(settlement.rows, settlement.group_of, tx.now_ms):
            settlement.refresh(tx, id_)
        over = attention.over(settlement, grouping, blind=self.blind, now_ms=tx.now_ms)
        for id_ in over:
            settlement.resolve(tx, id_)
        self.counters.resolved += len(over)
        attention.look(tx, settlement, self._context.view.places)
        self._expire(tx, grouping)

    def _expire(self, tx: EngineTransaction, grouping: Grouping) -> None:
        """Drop what is over for good."""
        now_ms = tx.now_ms
        gone = [
            id_ for id_, row in self._settlement.rows.items()
            if row["closed_at_ms"] is not None and row["merged_into"] is None and not self._in_hold(row, now_ms)
        ]  # fmt: skip
        for id_ in gone:
            self._settlement.rows.pop(id_)
            group = self._settlement.group_of.pop(id_) if id_ in self._settlement.group_of else None
            if group is not None:
                for one in group.members:
                    self._fast.discard(one)
                grouping.forget(list(group.members))
        merged = [id_ for id_, row in self._settlement.rows.items() if row["merged_into"] is not None]
        for id_ in merged:
            del self._settlement.rows[id_]
        self._muted = {key: value for key, value in self._muted.items() if value[0] > now_ms}

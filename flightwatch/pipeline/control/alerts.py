"""Messages to people: planned, intended, sent; each change in one transaction under the engine's lease."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from flightwatch.core.incident import AlertReason
from flightwatch.core.vocabulary import Severity
from flightwatch.pipeline.control.alert_needs import AlertNeeds
from flightwatch.pipeline.control.alert_rows import (
    CARRIED,
    DROPPED,
    FAILED,
    INTENT,
    SENT,
    WAITING,
    ChannelState,
    NewDelivery,
    Settled,
    StoredDelivery,
    Thread,
    delivery_of,
    thread_of,
)
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.control.projections import project
from flightwatch.pipeline.control.schema_alerts import ALERT_THREADS, CHANNEL_STATES, DELIVERIES

#: Ids of messages about several incidents begin so.
TOGETHER = "together-"
_FINISHED = (SENT, FAILED, DROPPED, CARRIED)
#: Values in one IN (...), and characters of an error that are kept.
_CHUNK, _LONGEST_ERROR = 500, 500


class AlertRecords:
    """Deliveries, threads and channels. Raises TransientError when the database is away, StaleGeneration when the
    lease is over: whoever writes under a lease that was lost changes nothing."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.needs = AlertNeeds(control)

    def now_ms(self) -> int:
        """Return the time of the control database."""
        with self._control.reading() as connection:
            return self._control.now_ms(connection)

    # Planning -----------------------------------------------------------------------------------------------------

    def plan(self, lease: Lease, wanted: Sequence[NewDelivery], needs: Sequence[int] = ()) -> int:
        """Store messages and mark the needs they answer; return how many are new.

        A message about a thread that waits already in the channel takes its place in the queue and changes only
        what it says: people get the newest state once, not every state.
        """
        added = 0
        with self._control.leases.guarded(lease) as connection:
            now_ms = self._control.now_ms(connection)
            for one in wanted:
                added += self._queue(connection, one, now_ms)
            if needs:
                self.needs.handled(connection, needs)
        return added

    def _queue(self, connection: sa.Connection, one: NewDelivery, now_ms: int) -> int:
        known = sa.select(DELIVERIES.c.id).where(DELIVERIES.c.id == one.id)
        if connection.execute(known).one_or_none() is not None:
            return 0
        same = sa.select(DELIVERIES).where(
            DELIVERIES.c.channel == one.channel, DELIVERIES.c.thread == one.thread, DELIVERIES.c.state == WAITING,
        )  # fmt: skip
        waiting = connection.execute(same.limit(1)).one_or_none()
        if waiting is not None:
            reason = merged(AlertReason(waiting.reason), one.reason)
            values = {"reason": reason.value, "severity": one.severity.value, "loud": waiting.loud or one.loud,
                      "detail": json.dumps(one.detail, ensure_ascii=False),
                      "incident": one.incident, "updated_at_ms": now_ms}  # fmt: skip
            connection.execute(sa.update(DELIVERIES).where(DELIVERIES.c.id == waiting.id).values(values))
            return 0
        connection.execute(
            sa.insert(DELIVERIES).values(
                id=one.id, channel=one.channel, thread=one.thread, incident=one.incident, reason=one.reason.value,
                severity=one.severity.value, state=WAITING, loud=one.loud,
                detail=json.dumps(one.detail, ensure_ascii=False), attempts=0, may_repeat=False, epoch=0,
                due_at_ms=now_ms, created_at_ms=now_ms, updated_at_ms=now_ms,
            )
        )  # fmt: skip
        return 1

    def recover(self, lease: Lease, channels: Collection[str]) -> int:
        """Take up what an earlier holder of the lease left: sends it had begun may repeat; return how many.

        Messages to channels that are configured no more are dropped.
        """
        with self._control.leases.guarded(lease) as connection:
            now_ms = self._control.now_ms(connection)
            begun = sa.and_(DELIVERIES.c.state == INTENT, DELIVERIES.c.epoch != lease.epoch)
            values = {"state": WAITING, "may_repeat": True, "due_at_ms": now_ms, "updated_at_ms": now_ms}
            found = connection.execute(sa.update(DELIVERIES).where(begun).values(values)).rowcount
            gone = sa.and_(DELIVERIES.c.state == WAITING, DELIVERIES.c.channel.not_in(list(channels)))
            dropped = {"state": DROPPED, "error": "the channel is configured no more", "updated_at_ms": now_ms}
            connection.execute(sa.update(DELIVERIES).where(gone).values(dropped))
        return int(found)

    # Sending ------------------------------------------------------------------------------------------------------

    def due(self, channel: str, limit: int = 500) -> list[StoredDelivery]:
        """Return messages of a channel that wait, the earliest due first, whether due or not yet."""
        chosen = sa.select(DELIVERIES).where(DELIVERIES.c.channel == channel, DELIVERIES.c.state == WAITING)
        with self._control.reading() as connection:
            rows = connection.execute(chosen.order_by(DELIVERIES.c.due_at_ms, DELIVERIES.c.sequence).limit(limit)).all()
        return [delivery_of(row) for row in rows]

    def loud_since(self, channel: str, since_ms: int) -> list[tuple[int, bool]]:
        """Return when loud messages were sent to a channel since a time, oldest first, and whether each told several
        incidents together."""
        chosen = sa.select(DELIVERIES.c.updated_at_ms, DELIVERIES.c.id).where(
            DELIVERIES.c.channel == channel, DELIVERIES.c.state == SENT, DELIVERIES.c.loud,
            DELIVERIES.c.updated_at_ms > since_ms,
        )  # fmt: skip
        with self._control.reading() as connection:
            rows = connection.execute(chosen.order_by(DELIVERIES.c.updated_at_ms)).all()
        return [(int(row.updated_at_ms), row.id.startswith(TOGETHER)) for row in rows]

    def gather(self, lease: Lease, members: Sequence[StoredDelivery], severity: Severity) -> StoredDelivery:
        """Make one message of several that wait for one channel; from now on they go inside it."""
        ids = sorted(member.id for member in members)
        id_ = TOGETHER + hashlib.sha256("|".join(ids).encode()).hexdigest()[:20]
        with self._control.leases.guarded(lease) as connection:
            now_ms = self._control.now_ms(connection)
            repeat = any(member.may_repeat for member in members)
            connection.execute(
                sa.insert(DELIVERIES).values(
                    id=id_, channel=members[0].channel, thread=id_, incident="", reason=AlertReason.OPENED.value,
                    severity=severity.value, state=WAITING, loud=True, detail="{}", attempts=0, may_repeat=repeat,
                    epoch=lease.epoch, due_at_ms=now_ms, created_at_ms=now_ms, updated_at_ms=now_ms,
                )
            )  # fmt: skip
            for chunk in _chunks(ids):
                connection.execute(
                    sa.update(DELIVERIES)
                    .where(DELIVERIES.c.id.in_(chunk))
                    .values(state=CARRIED, carried_by=id_, updated_at_ms=now_ms)
                )
            return delivery_of(connection.execute(sa.select(DELIVERIES).where(DELIVERIES.c.id == id_)).one())

    def intend(self, lease: Lease, delivery: StoredDelivery) -> StoredDelivery:
        """Note that a send begins, before it does."""
        with self._control.leases.guarded(lease) as connection:
            now_ms = self._control.now_ms(connection)
            begun = replace(
                delivery, state=INTENT, attempts=delivery.attempts + 1, epoch=lease.epoch, updated_at_ms=now_ms
            )  # fmt: skip
            values = {"state": INTENT, "attempts": begun.attempts, "epoch": lease.epoch, "updated_at_ms": now_ms}
            connection.execute(sa.update(DELIVERIES).where(DELIVERIES.c.id == delivery.id).values(values))
            self._project(connection, begun, INTENT, Settled(INTENT), now_ms)
        return begun

    def carried_by(self, id_: str) -> list[StoredDelivery]:
        """Return the messages that go inside another."""
        chosen = sa.select(DELIVERIES).where(DELIVERIES.c.carried_by == id_).order_by(DELIVERIES.c.sequence)
        with self._control.reading() as connection:
            return [delivery_of(row) for row in connection.execute(chosen)]

    def settle(
        self, lease: Lease, delivery: StoredDelivery, settled: Settled, members: Sequence[StoredDelivery] = ()
    ) -> None:
        """Note how a send ended, and what the channel was told.

        Parameters
        ----------
        members: messages that went inside this one.
        """
        with self._control.leases.guarded(lease) as connection:
            now_ms = self._control.now_ms(connection)
            error = None if settled.error is None else settled.error[:_LONGEST_ERROR]
            values = {
                "state": settled.state, "http_status": settled.http_status, "error": error,
                "latency_ms": settled.latency_ms, "due_at_ms": settled.due_at_ms or now_ms, "updated_at_ms": now_ms,
                "may_repeat": delivery.may_repeat or settled.unknown,
            }  # fmt: skip
            connection.execute(sa.update(DELIVERIES).where(DELIVERIES.c.id == delivery.id).values(values))
            status = FAILED if settled.state == WAITING else settled.state
            self._project(connection, delivery, status, settled, now_ms)
            if settled.state == SENT:
                self._told(connection, delivery, settled, now_ms)
                for member in members:
                    over = Settled(SENT, closes=member.reason is AlertReason.RESOLVED)
                    self._told(connection, member, over, now_ms, digest=delivery.thread)
            if settled.state != DROPPED:
                self._count(connection, delivery.channel, settled, now_ms)

    def _told(
        self, connection: sa.Connection, delivery: StoredDelivery, settled: Settled, now_ms: int,
        digest: str | None = None,
    ) -> None:  # fmt: skip
        if delivery.reason in (AlertReason.PLATFORM, AlertReason.TEST):
            return
        where = sa.and_(ALERT_THREADS.c.channel == delivery.channel, ALERT_THREADS.c.thread == delivery.thread)
        row = connection.execute(sa.select(ALERT_THREADS).where(where)).one_or_none()
        reminded = delivery.reason is AlertReason.REMINDER
        values: dict[str, Any] = {
            "incident": delivery.incident, "severity": delivery.severity.value, "digest": digest,
            "reference": json.dumps(dict(settled.reference or {}), ensure_ascii=False), "open": not settled.closes,
            "reminders": (row.reminders + 1 if row is not None else 1) if reminded else (row.reminders if row else 0),
        }  # fmt: skip
        if row is None or delivery.loud:
            values["last_at_ms"] = now_ms
        if delivery.reason in (AlertReason.OPENED, AlertReason.WORSENED, AlertReason.REOPENED):
            values["reminders"] = 0
        if row is None:
            values |= {"channel": delivery.channel, "thread": delivery.thread, "first_at_ms": now_ms}
            connection.execute(sa.insert(ALERT_THREADS).values(values))
        else:
            connection.execute(sa.update(ALERT_THREADS).where(where).values(values))

    def _count(self, connection: sa.Connection, channel: str, settled: Settled, now_ms: int) -> None:
        where = CHANNEL_STATES.c.channel == channel
        row = connection.execute(sa.select(CHANNEL_STATES).where(where)).one_or_none()
        values: dict[str, Any]
        if settled.state == SENT:
            values = {"failures": 0, "failing_since_ms": None, "last_ok_at_ms": now_ms}
        else:
            since = row.failing_since_ms if row is not None and row.failures else now_ms
            error = (settled.error or "")[:_LONGEST_ERROR]
            values = {"failures": (row.failures if row else 0) + 1, "failing_since_ms": since, "last_error": error}
        if row is None:
            connection.execute(sa.insert(CHANNEL_STATES).values(channel=channel, **values))
        else:
            connection.execute(sa.update(CHANNEL_STATES).where(where).values(values))

    def _project(
        self, connection: sa.Connection, delivery: StoredDelivery, status: str, settled: Settled, now_ms: int
    ) -> None:
        row = {
            "ts": now_ms, "incident": delivery.incident, "channel": delivery.channel,
            "attempt": min(delivery.attempts, 65_535), "status": status, "http_status": settled.http_status,
            "error": settled.error, "latency_ms": settled.latency_ms,
        }  # fmt: skip
        project(self._control, connection, "alert_deliveries", delivery.id, row)

    # Threads and channels -----------------------------------------------------------------------------------------

    def threads(self, keys: Collection[str]) -> dict[tuple[str, str], Thread]:
        """Return what channels were told about some incidents, by channel and thread."""
        found: dict[tuple[str, str], Thread] = {}
        with self._control.reading() as connection:
            for chunk in _chunks(sorted(keys)):
                for row in connection.execute(sa.select(ALERT_THREADS).where(ALERT_THREADS.c.thread.in_(chunk))):
                    found[row.channel, row.thread] = thread_of(row)
        return found

    def pending(self, keys: Collection[str]) -> set[tuple[str, str]]:
        """Return channel and thread of messages about some incidents that are not sent yet."""
        found: set[tuple[str, str]] = set()
        with self._control.reading() as connection:
            for chunk in _chunks(sorted(keys)):
                chosen = sa.select(DELIVERIES.c.channel, DELIVERIES.c.thread).where(
                    DELIVERIES.c.thread.in_(chunk), DELIVERIES.c.state.in_((WAITING, INTENT))
                )
                found |= {(row.channel, row.thread) for row in connection.execute(chosen)}
        return found

    def open_threads(self, told_before_ms: int, limit: int = 1000) -> list[Thread]:
        """Return threads that are open and of which nothing was heard since a time, the quietest first."""
        chosen = sa.select(ALERT_THREADS).where(ALERT_THREADS.c.open, ALERT_THREADS.c.last_at_ms <= told_before_ms)
        with self._control.reading() as connection:
            rows = connection.execute(chosen.order_by(ALERT_THREADS.c.last_at_ms).limit(limit)).all()
        return [thread_of(row) for row in rows]

    def told_together(self, channel: str, digest: str) -> list[Thread]:
        """Return the threads that one message told together and that have none of their own since."""
        chosen = sa.select(ALERT_THREADS).where(ALERT_THREADS.c.channel == channel, ALERT_THREADS.c.digest == digest)
        with self._control.reading() as connection:
            return [thread_of(row) for row in connection.execute(chosen)]

    def close_thread(self, lease: Lease, channel: str, thread: str) -> None:
        """Note that nothing more is to be told in a thread."""
        with self._control.leases.guarded(lease) as connection:
            where = sa.and_(ALERT_THREADS.c.channel == channel, ALERT_THREADS.c.thread == thread)
            connection.execute(sa.update(ALERT_THREADS).where(where).values(open=False))

    def channel_states(self) -> dict[str, ChannelState]:
        """Return how each channel does that was ever used."""
        with self._control.reading() as connection:
            rows = connection.execute(sa.select(CHANNEL_STATES)).all()
        return {row.channel: ChannelState(**row._mapping) for row in rows}

    def report_channel(self, lease: Lease, channel: str, wanted: Sequence[NewDelivery], *, dead: bool) -> None:
        """Tell other channels that one is dead or takes messages again, and remember that they were told."""
        with self._control.leases.guarded(lease) as connection:
            now_ms = self._control.now_ms(connection)
            reported = now_ms if dead else None
            connection.execute(
                sa.update(CHANNEL_STATES).where(CHANNEL_STATES.c.channel == channel).values(reported_at_ms=reported)
            )
            for one in wanted:
                self._queue(connection, one, now_ms)

    # Reading ------------------------------------------------------------------------------------------------------

    def deliveries(
        self, *, incident: str | None = None, channel: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[StoredDelivery]:
        """Return deliveries, the newest first; `before`: sequence of the last one seen."""
        chosen = sa.select(DELIVERIES).order_by(DELIVERIES.c.sequence.desc()).limit(limit)
        if incident is not None:
            chosen = chosen.where(DELIVERIES.c.incident == incident)
        if channel is not None:
            chosen = chosen.where(DELIVERIES.c.channel == channel)
        if before is not None:
            chosen = chosen.where(DELIVERIES.c.sequence < before)
        with self._control.reading() as connection:
            return [delivery_of(row) for row in connection.execute(chosen)]

    def waiting_by_channel(self) -> dict[str, int]:
        """Return how many messages wait for each channel."""
        counted = sa.select(DELIVERIES.c.channel, sa.func.count()).where(DELIVERIES.c.state.in_((WAITING, INTENT)))
        with self._control.reading() as connection:
            return {row[0]: int(row[1]) for row in connection.execute(counted.group_by(DELIVERIES.c.channel))}

    def forget(self, older_than_ms: int) -> int:
        """Delete finished deliveries and closed threads not touched since a time; return how many rows."""
        with self._control.transaction() as connection:
            old = sa.and_(DELIVERIES.c.state.in_(_FINISHED), DELIVERIES.c.updated_at_ms < older_than_ms)
            done = connection.execute(sa.delete(DELIVERIES).where(old)).rowcount
            over = sa.and_(sa.not_(ALERT_THREADS.c.open), ALERT_THREADS.c.last_at_ms < older_than_ms)
            return int(done + connection.execute(sa.delete(ALERT_THREADS).where(over)).rowcount)


#: The more a reason weighs, the less it gives way to a later one.
_WEIGHT = {
    AlertReason.CHANGED: 0, AlertReason.ACKNOWLEDGED: 1, AlertReason.REMINDER: 1, AlertReason.WORSENED: 2,
    AlertReason.OPENED: 3, AlertReason.REOPENED: 3,
}  # fmt: skip


def merged(waiting: AlertReason, new: AlertReason) -> AlertReason:
    """Return why a message is due that had not been sent when the next one became due."""
    if new not in _WEIGHT or waiting not in _WEIGHT:
        return new
    return waiting if _WEIGHT[waiting] > _WEIGHT[new] else new


def _chunks(values: Sequence[str]) -> Iterable[list[str]]:
    for start in range(0, len(values), _CHUNK):
        yield list(values[start : start + _CHUNK])

"""Requests, their ranks and the ranks that can be profiled, in the control database."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from flightwatch.core.errors import NotFound, Refused
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.schema import PROFILE_RANKS, PROFILE_REQUESTS, PROFILE_TARGETS

RANK_ENDED = ("done", "failed", "stopped")
REQUEST_ENDED = ("done", "failed", "stopped")
#: States of a rank in their order; news that goes back is late and dropped.
_ORDER = {"requested": 0, "waiting": 1, "armed": 2, "reading": 3, "sent": 4, "done": 5, "failed": 5, "stopped": 5}
_LONGEST = 500
#: Option of a request for times of the model's blocks, which come as rows of op_timings and not as traces.
BLOCKS = "blocks"
#: Place of traces that were to go into an object store that does not take them.
KEPT = "folder"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody asks for.

    Attributes
    ----------
    run: attempt, "" for the one that runs.
    options: stacks, shapes, memory, or BLOCKS alone.
    to: address in an object store where the traces go, "" for the folder.
    """

    job: str
    run: str
    ranks: Sequence[int]
    steps: int
    options: Mapping[str, bool]
    max_bytes: int
    max_seconds: int
    requested_by: str
    reason: str
    to: str = ""


@dataclass(frozen=True, slots=True)
class RankNews:
    """A new state of one rank; None leaves a column as it is."""

    rank: int
    state: str
    reason: str = ""
    node: str | None = None
    first_step: int | None = None
    artifact: str | None = None
    sha256: str | None = None
    bytes: int | None = None


class Profiles:
    """Reads and changes requests; each call is one transaction. Raises TransientError when the database is away."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def create(self, wanted: Wanted) -> str:
        """Store a request for the control server to send out; return its id."""
        name = f"p{secrets.token_hex(5)}"
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            connection.execute(
                sa.insert(PROFILE_REQUESTS).values(
                    id=name, job=wanted.job, run=wanted.run, steps=wanted.steps, start_step=0,
                    options=json.dumps(dict(wanted.options) | ({"to": wanted.to} if wanted.to else {})),
                    max_bytes=wanted.max_bytes,
                    max_seconds=wanted.max_seconds, requested_by=wanted.requested_by, reason=wanted.reason[:_LONGEST],
                    state="requested", created_at_ms=now_ms, updated_at_ms=now_ms, version=1, published_version=0,
                )
            )  # fmt: skip
            rows = [
                {"request": name, "rank": rank, "node": "", "state": "requested", "reason": "", "updated_at_ms": now_ms}
                for rank in sorted(set(wanted.ranks))
            ]
            connection.execute(sa.insert(PROFILE_RANKS), rows)
        return name

    def get(self, name: str) -> dict[str, Any]:
        """Return one request with its ranks. Raises NotFound when there is none."""
        with self._control.reading() as connection:
            row = connection.execute(sa.select(PROFILE_REQUESTS).where(PROFILE_REQUESTS.c.id == name)).one_or_none()
            if row is None:
                raise NotFound(f"there is no profile {name}")
            return self._document(connection, row)

    def newest(self, limit: int = 50) -> list[dict[str, Any]]:
        """Return requests with their ranks, the newest first."""
        newest = sa.select(PROFILE_REQUESTS).order_by(PROFILE_REQUESTS.c.created_at_ms.desc()).limit(limit)
        return self._documents(newest)

    def in_state(self, *states: str) -> list[dict[str, Any]]:
        """Return requests in some states, the oldest first."""
        chosen = sa.select(PROFILE_REQUESTS).where(PROFILE_REQUESTS.c.state.in_(states))
        return self._documents(chosen.order_by(PROFILE_REQUESTS.c.created_at_ms))

    def unpublished(self) -> list[dict[str, Any]]:
        """Return requests that changed since their projection was written."""
        changed = PROFILE_REQUESTS.c.version > PROFILE_REQUESTS.c.published_version
        return self._documents(sa.select(PROFILE_REQUESTS).where(changed).limit(200))

    def published(self, name: str, version: int) -> None:
        """Note that the projection has a version."""
        with self._control.transaction() as connection:
            connection.execute(
                sa.update(PROFILE_REQUESTS).where(PROFILE_REQUESTS.c.id == name).values(published_version=version)
            )

    def sent_out(self, name: str, run: str, start_step: int) -> None:
        """Note that the commands of a request are on their way; nodes may have answered already."""
        with self._control.transaction() as connection:
            connection.execute(
                sa.update(PROFILE_REQUESTS)
                .where(PROFILE_REQUESTS.c.id == name, PROFILE_REQUESTS.c.state.in_(("requested", "running")))
                .values(
                    state="running",
                    run=run,
                    start_step=start_step,
                    version=PROFILE_REQUESTS.c.version + 1,
                    updated_at_ms=self._control.now_ms(connection),
                )
            )

    def stop(self, name: str) -> None:
        """Ask for the end of a request; ranks that ended stay. Raises Refused when there is none or it has ended."""
        found = self.get(name)
        if found["state"] in REQUEST_ENDED:
            raise Refused(f"profile {name} has ended already ({found['state']})")
        with self._control.transaction() as connection:
            connection.execute(
                sa.update(PROFILE_REQUESTS)
                .where(PROFILE_REQUESTS.c.id == name)
                .values(state="stopping", version=PROFILE_REQUESTS.c.version + 1,
                        updated_at_ms=self._control.now_ms(connection))
            )  # fmt: skip

    def tell(self, name: str, news: Iterable[RankNews]) -> None:
        """Take news of ranks and derive the request's state; late and unknown news changes nothing."""
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            request = connection.execute(
                sa.select(PROFILE_REQUESTS).where(PROFILE_REQUESTS.c.id == name).with_for_update()
            ).one_or_none()
            if request is None:
                return
            rows = connection.execute(sa.select(PROFILE_RANKS).where(PROFILE_RANKS.c.request == name)).all()
            states = {row.rank: row.state for row in rows}
            changed = ended = False
            for one in news:
                if one.rank not in states or _ORDER.get(one.state, -1) < _ORDER[states[one.rank]]:
                    continue
                if states[one.rank] in RANK_ENDED and one.state != states[one.rank]:
                    continue
                states[one.rank] = one.state
                changed, ended = True, ended or one.state in RANK_ENDED
                optional = {key: getattr(one, key) for key in ("node", "first_step", "artifact", "sha256", "bytes")}
                connection.execute(
                    sa.update(PROFILE_RANKS)
                    .where(PROFILE_RANKS.c.request == name, PROFILE_RANKS.c.rank == one.rank)
                    .values(state=one.state, reason=one.reason[:_LONGEST], updated_at_ms=now_ms,
                            **{key: value for key, value in optional.items() if value is not None})
                )  # fmt: skip
            if changed:
                state = _state(request.state, list(states.values()))
                connection.execute(
                    sa.update(PROFILE_REQUESTS)
                    .where(PROFILE_REQUESTS.c.id == name)
                    .values(
                        state=state,
                        updated_at_ms=now_ms,
                        # Readers of the projection care about ends, not about every step on the way.
                        version=PROFILE_REQUESTS.c.version + (1 if ended or state != request.state else 0),
                    )
                )

    def to_land(self) -> list[dict[str, Any]]:
        """Return requests of the last day whose traces belong into an object store and are not all there."""
        with self._control.reading() as connection:
            since_ms = self._control.now_ms(connection) - 86_400_000
        # The options are text: only requests that name a place hold this word, and it is checked again.
        named = PROFILE_REQUESTS.c.options.like('%"to":%') & (PROFILE_REQUESTS.c.created_at_ms >= since_ms)
        found = self._documents(sa.select(PROFILE_REQUESTS).where(named).order_by(PROFILE_REQUESTS.c.created_at_ms))
        return [one for one in found if one["options"].get("to") and one["options"].get("to") != KEPT]

    def landed(self, name: str, rank: int, artifact: str, problem: str) -> None:
        """Note where a trace lies now; with a problem, that this request's traces stay in the folder."""
        with self._control.transaction() as connection:
            values: dict[str, Any] = {"artifact": artifact} | ({"reason": problem[:_LONGEST]} if problem else {})
            connection.execute(
                sa.update(PROFILE_RANKS)
                .where(PROFILE_RANKS.c.request == name, PROFILE_RANKS.c.rank == rank)
                .values(**values)
            )
            changes: dict[str, Any] = {
                "version": PROFILE_REQUESTS.c.version + 1, "updated_at_ms": self._control.now_ms(connection)
            }  # fmt: skip
            if problem:
                row = connection.execute(sa.select(PROFILE_REQUESTS).where(PROFILE_REQUESTS.c.id == name)).one()
                changes["options"] = json.dumps(json.loads(row.options) | {"to": KEPT})
            connection.execute(sa.update(PROFILE_REQUESTS).where(PROFILE_REQUESTS.c.id == name).values(**changes))

    def see_targets(self, node: str, entries: Sequence[Mapping[str, Any]]) -> None:
        """Replace the ranks that a node says it has: job, run, rank, problem."""
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            connection.execute(sa.delete(PROFILE_TARGETS).where(PROFILE_TARGETS.c.node == node))
            rows = {
                (one["job"], one["run"], one["rank"]): {
                    "node": node, "job": one["job"], "run": one["run"], "rank": one["rank"],
                    "problem": one["problem"][:_LONGEST], "seen_at_ms": now_ms,
                }
                for one in entries
            }  # fmt: skip
            if rows:
                connection.execute(sa.insert(PROFILE_TARGETS), list(rows.values()))

    def targets(self, job: str, since_ms: int) -> list[dict[str, Any]]:
        """Return what agents said about a job's ranks since a time."""
        with self._control.reading() as connection:
            rows = connection.execute(
                sa.select(PROFILE_TARGETS).where(PROFILE_TARGETS.c.job == job, PROFILE_TARGETS.c.seen_at_ms >= since_ms)
            )
            return [dict(row._mapping) for row in rows]

    def jobs(self, since_ms: int) -> list[str]:
        """Return the jobs that agents named since a time."""
        with self._control.reading() as connection:
            names = sa.select(PROFILE_TARGETS.c.job).where(PROFILE_TARGETS.c.seen_at_ms >= since_ms).distinct()
            return sorted(str(row.job) for row in connection.execute(names))

    def now_ms(self) -> int:
        """Return the database's time."""
        with self._control.reading() as connection:
            return self._control.now_ms(connection)

    def _documents(self, statement: sa.Select[Any]) -> list[dict[str, Any]]:
        with self._control.reading() as connection:
            return [self._document(connection, row) for row in connection.execute(statement).all()]

    @staticmethod
    def _document(connection: sa.Connection, row: Any) -> dict[str, Any]:
        document = dict(row._mapping)
        document["options"] = json.loads(document["options"])
        ranks = sa.select(PROFILE_RANKS).where(PROFILE_RANKS.c.request == document["id"]).order_by(PROFILE_RANKS.c.rank)
        document["ranks"] = [dict(one._mapping) for one in connection.execute(ranks)]
        return document


def _state(before: str, ranks: Sequence[str]) -> str:
    """Derive a request's state from its ranks: done when at least one trace is there and all have ended."""
    if any(state not in RANK_ENDED for state in ranks):
        sent = any(state not in ("requested", *RANK_ENDED) for state in ranks)
        return "running" if sent and before == "requested" else before
    if "done" in ranks:
        return "done"
    return "stopped" if "stopped" in ranks else "failed"

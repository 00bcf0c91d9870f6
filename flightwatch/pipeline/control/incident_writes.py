"""Changes of incidents inside an open transaction: row, history, projection and due message together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from flightwatch.core.errors import NotFound
from flightwatch.core.incident import AlertReason
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.incident_rows import projection_row
from flightwatch.pipeline.control.projections import project
from flightwatch.pipeline.control.schema_incidents import ALERT_NEEDS, INCIDENT_FINDINGS, INCIDENT_HISTORY, INCIDENTS

#: Longest chain of merges that is followed; longer ones cannot come to be, because merges go to the last one.
_MOST_MERGES = 16
_HOUR_MS = 3_600_000


def resolved_id(connection: sa.Connection, id_: str) -> str:
    """Return the id of the incident that an id stands for: itself, the one that took it over, or the one that holds
    the finding which once opened it.

    Raises
    ------
    NotFound: no incident ever had this id.
    """
    wanted = id_
    for _ in range(_MOST_MERGES):
        row = connection.execute(sa.select(INCIDENTS.c.merged_into).where(INCIDENTS.c.id == wanted)).one_or_none()
        if row is None:
            found = connection.execute(
                sa.select(INCIDENT_FINDINGS.c.incident).where(INCIDENT_FINDINGS.c.opens == wanted).limit(1)
            ).scalar_one_or_none()
            if found is None or found == wanted:
                raise NotFound(f"there is no incident {id_}")
            wanted = found
        elif row.merged_into is None:
            return wanted
        else:
            wanted = row.merged_into
    raise NotFound(f"there is no incident {id_}")


def locked(connection: sa.Connection, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return rows of incidents by id, locked until the end of the transaction; ids that do not exist are left out."""
    found: dict[str, dict[str, Any]] = {}
    # In order, so that two writers never wait for each other.
    ordered = sorted(set(ids))
    for start in range(0, len(ordered), 500):
        chosen = sa.select(INCIDENTS).where(INCIDENTS.c.id.in_(ordered[start : start + 500])).order_by(INCIDENTS.c.id)
        for row in connection.execute(chosen.with_for_update()):
            found[row.id] = dict(row._mapping)
    return found


def change(
    control: Control,
    connection: sa.Connection,
    row: dict[str, Any],
    values: Mapping[str, Any],
    *,
    actor: str,
    event: str,
    detail: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Change an incident so that people see it: a new revision, a history entry, a projection; return the new row."""
    now_ms = control.now_ms(connection)
    new = row | dict(values) | {"revision": row["revision"] + 1, "updated_at_ms": now_ms}
    record(connection, new, actor, event, detail or {}, now_ms)
    store(connection, new)
    project_incident(control, connection, new)
    return new


def record(
    connection: sa.Connection, row: Mapping[str, Any], actor: str, event: str, detail: Mapping[str, Any], at_ms: int
) -> None:
    """Append to the history of an incident."""
    added = sa.insert(INCIDENT_HISTORY).values(
        incident=row["id"], revision=row["revision"], at_ms=at_ms, actor=actor, event=event,
        detail=json.dumps(detail, ensure_ascii=False),
    )  # fmt: skip
    connection.execute(added)


def store(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    """Write all columns of an incident that exists."""
    values = {name: value for name, value in row.items() if name != "id"}
    connection.execute(sa.update(INCIDENTS).where(INCIDENTS.c.id == row["id"]).values(values))


def project_incident(control: Control, connection: sa.Connection, row: dict[str, Any]) -> None:
    """Queue the row for the store."""
    findings = connection.execute(
        sa.select(INCIDENT_FINDINGS.c.finding)
        .where(INCIDENT_FINDINGS.c.incident == row["id"])
        .order_by(INCIDENT_FINDINGS.c.detected_at_ms, INCIDENT_FINDINGS.c.finding)
    ).scalars()
    project(control, connection, "incidents", row["id"], projection_row(row, list(findings)))


def need(
    connection: sa.Connection,
    row: Mapping[str, Any],
    reason: AlertReason,
    at_ms: int,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Note that people must hear of a change."""
    connection.execute(
        sa.insert(ALERT_NEEDS).values(
            incident=row["id"], revision=row["revision"], reason=reason.value,
            detail=json.dumps(detail or {}, ensure_ascii=False), at_ms=at_ms,
        )
    )  # fmt: skip


def with_loss(row: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """Return the loss counted up to now: what was lost before, and the present rate since it was last counted."""
    since, rate = row["loss_counted_at_ms"], row["loss_gpu_hours_per_hour"]
    if rate is None or since is None:
        return {"loss_counted_at_ms": now_ms}
    added = rate * max(0, now_ms - since) / _HOUR_MS
    return {"lost_gpu_hours": (row["lost_gpu_hours"] or 0.0) + added, "loss_counted_at_ms": now_ms}

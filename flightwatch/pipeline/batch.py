"""What travels in one bus message: a header and rows grouped by table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flightwatch.core.protocols import Row, Value


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """Identity of one batch.

    Attributes
    ----------
    agent_id: random id made once per agent installation.
    spool_id: random id made when the agent's spool was created; a new one restarts `seq`.
    lane: value of vocabulary.Lane.
    seq: number of the batch in (agent_id, spool_id, lane), from 1, without gaps.
    node, cluster: names set by the agent.
    created_at_ms: agent clock when the batch was closed, milliseconds since the epoch.
    program_version: version of the program that wrote it.
    """

    agent_id: str
    spool_id: str
    lane: str
    seq: int
    node: str
    cluster: str
    created_at_ms: int
    program_version: str
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Batch:
    """A header and its rows."""

    header: BatchHeader
    rows: Sequence[Row]


@dataclass(slots=True)
class ColumnBlock:
    """Rows of one table by column, as the codec carries them.

    Attributes
    ----------
    columns: name to list of cells; all lists have `count` cells; None is NULL.
    """

    table: str
    count: int
    columns: Mapping[str, Sequence[Value]]

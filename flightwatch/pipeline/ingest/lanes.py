"""Sequence numbers of agents: duplicates are dropped, jumps become counted gaps.

The last number of every lane is stored with the rows, in the table `ingest_lanes`, one row for each lane
of each range, before the range's end is committed. What a partition knew at any committed offset is
therefore in the store, however the process that knew it ended, and a store restored from a backup knows
exactly what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from flightwatch.pipeline.bus.base import Partition
from flightwatch.pipeline.codec.read import LaneKey, Opened
from flightwatch.pipeline.ingest.ranges import Range
from flightwatch.pipeline.store import positions
from flightwatch.pipeline.store.client import Store


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers first..last that never arrived, noticed at `offset`."""

    key: LaneKey
    first_seq: int
    last_seq: int
    node: str
    cluster: str
    offset: int
    received_at_ms: int
    reason: str

    @property
    def batches(self) -> int:
        """Batches missing."""
        return self.last_seq - self.first_seq + 1


class Sequences:
    """Last numbers of the lanes of one partition, with the changes of one range on top.

    Parameters
    ----------
    known: numbers as of the start of the range; not changed.
    """

    def __init__(self, known: Mapping[LaneKey, int]) -> None:
        self._known = known
        self.changed: dict[LaneKey, tuple[int, int]] = {}
        self.gaps: list[Gap] = []

    def admit(self, opened: Opened, offset: int, received_at_ms: int) -> bool:
        """Say whether a batch is new; note a gap when numbers were skipped. Numbers start at 1."""
        identity = opened.identity
        key = identity.key
        changed = self.changed.get(key)
        last = changed[0] if changed is not None else self._known.get(key, 0)
        if opened.seq <= last:
            return False
        if opened.seq > last + 1:
            reason = dict(identity.attributes).get("gap_reason") or "given up by the agent, or lost before the bus"
            self.gaps.append(
                Gap(key, last + 1, opened.seq - 1, identity.node, identity.cluster, offset, received_at_ms, reason)
            )
        self.changed[key] = (opened.seq, offset)
        return True


def load(store: Store, partition: Partition, incarnation: str, start: int) -> tuple[dict[LaneKey, int], int]:
    """Return the lanes' last numbers as of offset `start`, and the highest offset the store knows of (-1: none).

    Numbers seen in an earlier incarnation of the log count too: agents go on numbering when the bus is new.
    """
    rows = positions.lane_numbers(store, partition.topic, partition.number, incarnation, start)
    known = {LaneKey(row["agent_id"], row["spool_id"], row["lane"]): row["seq"] for row in rows}
    return known, positions.highest_offset(store, partition.topic, partition.number, incarnation)


def block(rng: Range, changed: Mapping[LaneKey, tuple[int, int]], blocks: int, now_ms: int) -> pa.Table:
    """Return the rows that remember a range's lanes.

    Parameters
    ----------
    blocks: inserts of the range, for the reach of the deduplication window; stands in the first row.
    """
    keys = list(changed)
    count = len(keys)
    return pa.table(
        {
            "ts": pa.array([now_ms] * count, pa.timestamp("ms", tz="UTC")),
            "topic": pa.array([rng.partition.topic] * count, pa.string()),
            "src_partition": pa.array([rng.partition.number] * count, pa.uint16()),
            "incarnation": pa.array([rng.incarnation] * count, pa.string()),
            "agent_id": pa.array([key.agent_id for key in keys], pa.string()),
            "spool_id": pa.array([key.spool_id for key in keys], pa.string()),
            "lane": pa.array([key.lane for key in keys], pa.string()),
            "seq": pa.array([changed[key][0] for key in keys], pa.uint64()),
            "src_offset": pa.array([changed[key][1] for key in keys], pa.uint64()),
            "blocks": pa.array([blocks if at == 0 else 0 for at in range(count)], pa.uint32()),
        }
    )

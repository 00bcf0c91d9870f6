"""How far storing is behind the bus: what absence of data means depends on it."""

from __future__ import annotations

from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.ingest.settings import GROUP, fast_group

#: Topics whose silence detectors judge, by the group that stores them.
_JUDGED = {fast_group(): (Topic.EVENTS.value,), GROUP: (Topic.SAMPLES.value, Topic.SCALARS.value)}


def stored_lag_seconds(bus: Bus, now_ms: int) -> float:
    """Return the age of the oldest message that is on the bus and not stored yet, 0 when all is stored.

    Raises
    ------
    TransientError: the bus is away, so nothing is known.
    """
    worst = 0.0
    for group, topics in _JUDGED.items():
        positions = bus.group_positions(group)
        for topic in topics:
            for partition in bus.partitions(topic):
                stored = positions.get(partition)
                start = max(stored.offset if stored else 0, bus.begin_offset(partition))
                if start < bus.end_offset(partition):
                    oldest = bus.read(partition, start, 1)
                    worst = max([worst, *((now_ms - one.timestamp_ms) / 1000 for one in oldest)])
    return worst

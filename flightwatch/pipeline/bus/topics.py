"""Which topics exist, with how many partitions and what retention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.bus.settings import BusSettings

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic as the settings want it."""

    name: str
    partitions: int
    retention_ms: int
    retention_bytes: int | None


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """What `setup_topics` found or made.

    Attributes
    ----------
    partitions: how many the topic has; an existing topic keeps its own number, because another one
        would move nodes between partitions.
    """

    plan: TopicPlan
    created: bool
    partitions: int


def topic_plans(settings: BusSettings) -> list[TopicPlan]:
    """Return all topics in the order of the vocabulary."""
    rows = (settings.rows_partitions, settings.rows_retention_hours, settings.rows_retention_bytes)
    findings = (settings.findings_partitions, settings.findings_retention_hours, settings.findings_retention_bytes)
    wanted: dict[Topic, tuple[int, float, int | None]] = {
        Topic.EVENTS: rows,
        Topic.SCALARS: rows,
        Topic.SAMPLES: rows,
        Topic.OPS: rows,
        Topic.BLOBS: (settings.blobs_partitions, settings.blobs_retention_hours, settings.blobs_retention_bytes),
        Topic.COMMANDS: (settings.commands_partitions, settings.commands_retention_hours, None),
        Topic.FINDINGS: findings,
        Topic.DEAD: findings,
    }
    return [
        TopicPlan(topic.value, partitions, int(hours * _HOUR_MS), size)
        for topic, (partitions, hours, size) in wanted.items()
    ]


def setup_topics(bus: Bus, settings: BusSettings) -> Sequence[TopicOutcome]:
    """Create what is missing and set the retention of what exists; doing it again changes nothing.

    Raises
    ------
    TransientError: the broker is away. Refused: it does not let us.
    """
    outcomes = []
    for plan in topic_plans(settings):
        before = len(bus.partitions(plan.name))
        bus.create_topic(plan.name, plan.partitions, plan.retention_ms, plan.retention_bytes)
        outcomes.append(TopicOutcome(plan, created=before == 0, partitions=before or plan.partitions))
    return outcomes

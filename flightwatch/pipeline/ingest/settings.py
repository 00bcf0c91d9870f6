"""The section `[ingest]`."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting

#: Consumer group of all ingest processes of one installation.
GROUP = "flightwatch-ingest"


def fast_group(group: str = GROUP) -> str:
    """Return the group of the topics with a thread of their own.

    A second group, not a second member: members of one Kafka group with different topics wait for each other's
    rebalances, and a leader that lacks the metadata of the others' topics leaves them without an owner.
    """
    return f"{group}-fast"


@dataclass(frozen=True)
class IngestSettings:
    """Sizes and times of ingest."""

    events_linger_seconds: float = setting(
        0.05, "longest wait of events, findings and dead letters for others to share an insert", minimum=0.0
    )
    samples_linger_seconds: float = setting(
        1.0, "longest wait of samples, scalars and op timings for others to share an insert", minimum=0.0
    )
    insert_rows: int = setting(150_000, "rows after which an insert does not wait for more", minimum=1)
    insert_bytes: int = setting(48_000_000, "message bytes after which an insert does not wait for more", minimum=1_000)
    buffer_bytes: int = setting(96_000_000, "message bytes held per partition while an insert runs", minimum=1_000)
    late_days: float = setting(
        14.0, "rows older than this against broker time, and than their table keeps, are put aside", minimum=0.05
    )
    future_seconds: float = setting(300.0, "rows further ahead of broker time are put aside", minimum=0.0)
    ownership_seconds: float = setting(
        10.0,
        "how long ingest trusts that it owns a partition; below half of bus.session_timeout_seconds",
        minimum=0.1,
    )
    retry_seconds: float = setting(30.0, "longest wait between two tries while the store is away", minimum=0.1)
    require_signatures: bool = setting(
        False, "refuse batches without a valid signature of their node's key; set it wherever agents are remote"
    )

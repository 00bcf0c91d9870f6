"""The section `[incidents]`: when findings become an incident, how grave it is, when it is over."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class IncidentSettings:
    """What an operator may change about incidents."""

    stale_after_seconds: float = setting(600.0, "findings older than this never page and nothing is done", minimum=1)
    resolve_after_seconds: float = setting(
        300.0, "an incident is resolved when its evidence has been gone this long", minimum=0
    )
    flap_hold_seconds: float = setting(
        1800.0, "evidence within this time after the end reopens the incident; a reopened one ends after it", minimum=0
    )
    false_positive_seconds: float = setting(
        86_400.0, "the same finding at the same place stays quiet this long after a person called it false", minimum=0
    )
    unconfirmed_seconds: float = setting(
        1800.0,
        "a finding made from events at once counts this long unless the detection loop states it too",
        minimum=60,
    )
    blind_after_seconds: float = setting(
        180.0, "rows stored later than this mean that Flightwatch is blind and absence is not judged", minimum=10
    )
    settle_seconds: float = setting(0.3, "time for findings of one cause to gather before people hear", minimum=0)
    storm_settle_seconds: float = setting(8.0, "the same while many incidents open at once", minimum=0)
    storm_incidents: int = setting(20, "incidents opened within a minute that make a storm", minimum=1)
    crowd_nodes: int = setting(
        5, "nodes of one rack, zone, switch or job with the same finding: one incident", minimum=2
    )
    p2_job_gpus: int = setting(1000, "GPUs of a job from which a share of it makes an incident P2", minimum=1)
    p2_job_share: float = setting(0.05, "share of such a job lost that makes an incident P2", minimum=0)
    p2_loss_gpu_hours_per_hour: float = setting(10.0, "loss that makes an incident P2", minimum=0)
    most_findings: int = setting(200_000, "findings held in memory; the oldest consequences go first", minimum=1000)
    lease_seconds: float = setting(15.0, "how long an engine keeps its role without renewing", minimum=2)

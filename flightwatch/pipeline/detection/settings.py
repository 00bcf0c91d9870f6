"""The section `[detect]`: how often detectors run and which."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class DetectSettings:
    """What an operator may change about detection; thresholds have one documented set of defaults."""

    interval_seconds: float = setting(15.0, "longest time between two cycles", minimum=1)
    soonest_seconds: float = setting(5.0, "shortest time between two cycles that new rows bring about", minimum=0.1)
    duty: float = setting(
        0.3, "share of the time for cycles; longer ones wait longer, up to the interval", minimum=0.01
    )
    history_seconds: int = setting(3600, "telemetry read in each cycle", minimum=300)
    fleet_seconds: float = setting(30.0, "shortest time between two looks at telemetry", minimum=0)
    step_cells: int = setting(10_000_000, "steps x ranks kept in memory per shard of jobs", minimum=100_000)
    sample_rows: int = setting(
        1_250_000, "rows of one table of samples in memory; beyond it, every second (third, ...) sampling is left out",
        minimum=10_000,
    )  # fmt: skip
    steps_seconds: int = setting(7200, "training rows read in each cycle", minimum=300)
    disabled: tuple[str, ...] = setting((), "detectors that do not run")
    shadow: tuple[str, ...] = setting((), "detectors that run and whose findings are only logged")
    clear_after_seconds: int = setting(900, "a finding its detector no longer states is cleared after this", minimum=60)
    blind_seconds: float = setting(
        90.0, "ingest so far behind, or silence so long, and absence is not judged", minimum=10
    )
    lease_seconds: float = setting(60.0, "how long a detection process keeps its shards without renewing", minimum=5)
    job_shards: int = setting(4, "parts into which several detection processes divide the jobs", minimum=1)
    expectation: str = setting("", "JSON file of what jobs should reach; empty: only earlier runs are compared with")
    autoencoder: str = setting("", "model file of the autoencoder (`flightwatch detect train`); empty: it does not run")
    evidence: bool = setting(True, "a slow finding asks agents for the op detail of the suspect and two role peers")
    evidence_job_seconds: float = setting(600.0, "shortest time between two such requests about one job", minimum=10)
    evidence_per_hour: int = setting(20, "such requests of the whole installation in an hour", minimum=0)
    profile: bool = setting(False, "a slow finding also starts a profile of the suspect and two role peers")
    profile_steps: int = setting(3, "steps of such a profile", minimum=1)
    profile_job_seconds: float = setting(7200.0, "shortest time between two such profiles of one job", minimum=60)
    profiles_per_hour: int = setting(4, "such profiles of the whole installation in an hour", minimum=0)

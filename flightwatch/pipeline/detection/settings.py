"""The section `[detect]`: how often detectors run and which."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class DetectSettings:
    """What an operator may change about detection; thresholds have one documented set of defaults."""

    interval_seconds: float = setting(15.0, "longest time between two cycles", minimum=1)
    history_seconds: int = setting(3600, "telemetry read in each cycle", minimum=300)
    steps_seconds: int = setting(7200, "training rows read in each cycle", minimum=300)
    disabled: tuple[str, ...] = setting((), "detectors that do not run")
    shadow: tuple[str, ...] = setting((), "detectors that run and whose findings are only logged")
    clear_after_seconds: int = setting(900, "a finding its detector no longer states is cleared after this", minimum=60)
    lease_seconds: float = setting(60.0, "how long a detection process keeps its role without renewing", minimum=5)

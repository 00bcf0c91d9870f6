"""Is it cheaper to go on with a slow node or to restart without it?"""

from __future__ import annotations

from dataclasses import dataclass

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Cost:
    """Both sides of the question, in GPU-hours; None where it cannot be known.

    Attributes
    ----------
    loss: of going on for `horizon_hours`. restart: of stopping now: the start-up and the work since the checkpoint.
    break_even_hours: after so long going on has cost as much as a restart.
    """

    horizon_hours: float
    loss: float | None
    restart: float | None
    break_even_hours: float | None

    @property
    def worth_it(self) -> bool | None:
        """Say whether a restart is cheaper; None when one side is unknown."""
        return None if self.loss is None or self.restart is None else self.loss > self.restart

    def sentence(self) -> str:
        """Return both figures in words."""
        if self.loss is None:
            return "what going on costs is not known"
        going_on = f"going on costs {self.loss:,.0f} GPU-hours in {self.horizon_hours:g} h"
        if self.restart is None:
            return f"{going_on}; what a restart costs is not known"
        return f"{going_on}, a restart {self.restart:,.0f}"


def cost_of(
    *,
    loss_gpu_hours_per_hour: float | None,
    gpus: int | None,
    restart_minutes: float,
    checkpoint_at_ms: int | None,
    now_ms: int,
    horizon_hours: float,
) -> Cost:
    """Compare.

    Parameters
    ----------
    loss_gpu_hours_per_hour: what the incident costs each hour. gpus: of the job.
    checkpoint_at_ms: last durable checkpoint; None: unknown, then so is the cost of a restart.
    """
    loss = None if loss_gpu_hours_per_hour is None else loss_gpu_hours_per_hour * horizon_hours
    restart = None
    if gpus is not None and checkpoint_at_ms is not None:
        since_hours = max(0.0, (now_ms - checkpoint_at_ms) / _HOUR_MS)
        restart = gpus * (restart_minutes / 60 + since_hours)
    even = None
    if restart is not None and loss_gpu_hours_per_hour:
        even = restart / loss_gpu_hours_per_hour
    return Cost(horizon_hours, loss, restart, even)

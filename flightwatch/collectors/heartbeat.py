"""The agent's own figures: `self_metrics` of component agent, against which absence is judged."""

from __future__ import annotations

from collections.abc import Iterable

from flightwatch.collectors.environment import Environment
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Row


class HeartbeatCollector:
    """Sends what the running agent says about itself."""

    name = "heartbeat"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.heartbeat_seconds
        self._environment = environment

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Return the figures. Raises NoData outside a running agent."""
        if self._environment.figures is None:
            raise NoData("no agent is running around this collector")
        return self._environment.figures(now_ms)

"""The node agent: collectors, runner, sink and commands, from start to a clean end.

Knows only core's contracts; the command line joins it to the bus.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from flightwatch.collectors.clock_jumps import ClockJumps
from flightwatch.collectors.environment import Environment
from flightwatch.collectors.ownership.board import OwnerSink
from flightwatch.collectors.registry import make_collectors
from flightwatch.collectors.runner import Runner
from flightwatch.collectors.slot import Slot
from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.logs import Occasionally
from flightwatch.core.protocols import Command, CommandSource, Row, Sink

logger = logging.getLogger(__name__)

#: Figures of each collector are sent this often, and at once when one of its calls failed or got stuck.
COLLECTOR_FIGURES_SECONDS = 60.0
#: When everything has been used once, memory that starting needed is given back.
SETTLE_SECONDS = 30.0
#: The main thread looks for stuck calls and new commands this often.
WATCH_SECONDS = 2.0


class SinkState(Protocol):
    """What the agent tells about its sink in a heartbeat."""

    @property
    def last_sent_ms(self) -> int | None:
        """Agent clock at the last acknowledgement, None before the first."""

    @property
    def oldest_waiting_ms(self) -> int | None:
        """Agent clock when the oldest unacknowledged batch was made, None when nothing waits."""

    @property
    def dropped_rows(self) -> int:
        """Rows given up since the start."""


class Agent:
    """Collects until told to stop.

    Parameters
    ----------
    sink_state: answers for the heartbeat.
    commands: where commands come from; None: none are read.
    handlers: command type to what does it.
    settle: called once, SETTLE_SECONDS after the start.
    """

    def __init__(
        self,
        environment: Environment,
        sink: Sink,
        clock: Clock,
        sink_state: Callable[[], SinkState],
        commands: CommandSource | None = None,
        handlers: Mapping[str, Callable[[Command], None]] | None = None,
        settle: Callable[[], None] | None = None,
    ) -> None:
        environment.figures = self.figures
        owned = OwnerSink(sink, environment.owners)
        self.runner = Runner(make_collectors(environment), owned, clock, environment.settings.stuck_after_seconds)
        self._sink = sink
        self._clock = clock
        self._sink_state = sink_state
        self._commands = commands
        self._handlers = handlers or {}
        self._settle = settle
        self._environment = environment
        self._stop = threading.Event()
        self._sent_collectors: dict[str, tuple[float, int]] = {}
        self._command_trouble = Occasionally(300.0)
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        """Ask `run` to end; may be called from a signal handler or another thread."""
        self._stop.set()

    def run(self, wait: Callable[[float], bool] | None = None) -> bool:
        """Collect until `stop`, then send what is left.

        Parameters
        ----------
        wait: waits so many seconds and says whether to stop; by default until `stop` is called.

        Returns
        -------
        False when something could be neither sent nor spooled within `agent.stop_timeout_seconds`.
        """
        self.runner.start()
        settle_at_s = self._clock.monotonic_s() + SETTLE_SECONDS
        wait = wait or self._stop.wait
        jumps = ClockJumps(self._clock)
        while not wait(WATCH_SECONDS):
            self.runner.watch()
            if (jump := jumps.look()) is not None:
                logger.warning("%s", jump.values["message"])
                self._sink.emit([jump])
            self.read_commands()
            if self._settle is not None and self._clock.monotonic_s() >= settle_at_s:
                self._settle()
                self._settle = None
        timeout_s = self._environment.settings.stop_timeout_seconds
        self.runner.stop(min(1.0, timeout_s))
        return self._sink.flush(timeout_s)

    def read_commands(self) -> None:
        """Do the commands that have come; a command that fails or is unknown is logged."""
        if self._commands is None:
            return
        try:
            commands = self._commands.poll()
        except FlightwatchError as error:
            if self._command_trouble.due():
                logger.warning("commands cannot be read: %s", error)
            return
        for command in commands:
            handler = self._handlers.get(command.type)
            if handler is None:
                logger.warning(
                    "command %s of type %r is not done: this agent does not know it", command.id, command.type
                )
                continue
            try:
                handler(command)
            except FlightwatchError as error:
                logger.warning("command %s (%s) failed: %s", command.id, command.type, error)

    def figures(self, now_ms: int) -> list[Row]:
        """Return the heartbeat: process, sink, and collectors whose turn it is."""
        state = self._sink_state()
        times = os.times()
        process: dict[str, float | None] = {
            "last_collected_at_ms": _number(self.runner.last_collected_ms),
            "last_sent_at_ms": _number(state.last_sent_ms),
            "oldest_waiting_at_ms": _number(state.oldest_waiting_ms),
            "dropped_rows_total": float(state.dropped_rows),
            "cpu_s_total": times.user + times.system,
            "rss_bytes": self._rss_bytes(),
            "threads": float(threading.active_count()),
        }
        rows = [_figure(now_ms, "", name, value) for name, value in process.items() if value is not None]
        now_s = self._clock.monotonic_s()
        for slot in self.runner.slots:
            trouble = slot.counts.failure + slot.counts.stuck
            sent_at_s, sent_trouble = self._sent_collectors.get(slot.name, (float("-inf"), 0))
            if trouble != sent_trouble or now_s - sent_at_s >= COLLECTOR_FIGURES_SECONDS:
                self._sent_collectors[slot.name] = (now_s, trouble)
                rows.extend(_collector_figures(now_ms, slot))
        return rows

    def _rss_bytes(self) -> float | None:
        try:
            with open("/proc/self/statm", "rb") as file:
                return float(int(file.read().split()[1]) * self._page_bytes)
        except (OSError, IndexError, ValueError):
            return None


def _collector_figures(now_ms: int, slot: Slot) -> list[Row]:
    counts = slot.counts
    values = {
        "collect_success_total": counts.success,
        "collect_failure_total": counts.failure,
        "collect_no_data_total": counts.no_data,
        "collect_stuck_total": counts.stuck,
        "collect_skipped_total": counts.skipped,
        "collect_last_ms": counts.last_seconds * 1000,
        "collect_longest_ms": counts.longest_seconds * 1000,
        "collect_busy_s_total": counts.busy_seconds,
    }
    return [_figure(now_ms, slot.name, name, float(value)) for name, value in values.items()]


def _figure(now_ms: int, instance: str, name: str, value: float) -> Row:
    return Row("self_metrics", {"ts": now_ms, "component": "agent", "instance": instance, "name": name, "value": value})


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)

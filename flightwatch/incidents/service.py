"""The incident engine as a service: one process holds the role, reads the bus, and lets its followers work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError, StaleGeneration, TransientError
from flightwatch.core.logs import Occasionally
from flightwatch.incidents.context import Context
from flightwatch.incidents.engine import Engine
from flightwatch.incidents.fast_events import FastEvents
from flightwatch.incidents.intake import TOPICS, Intake, Taken, Verify
from flightwatch.incidents.settings import IncidentSettings
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.engine_writes import EngineWrites
from flightwatch.pipeline.control.leases import Lease

log = logging.getLogger(__name__)

ROLE = "incidents"
GROUP = "flightwatch-incidents"
#: Bytes of one batch: as many as are settled well within the lease, however slow the machine is.
_LEAST_BYTES, _FIRST_BYTES, _MOST_BYTES = 4_000, 250_000, 2_000_000
_POLL_SECONDS, _SHORTEST_POLL_SECONDS = 0.1, 0.005
#: Followers work at least this often; urgent ones are woken after every batch that people must hear of.
_FOLLOW_SECONDS = 1.0
#: Followers rest when the engine has not finished a cycle for so long: then nobody must think that all is well.
_STUCK_SECONDS = 60.0
_PAUSE_AFTER_FAILURE_SECONDS = 5.0


class Follower(Protocol):
    """Works on what the engine wrote, while this process holds the role. Called by one thread of its own."""

    name: str
    #: Woken the moment people must hear of something. The others come by within a second and leave it the way.
    urgent: bool

    def cycle(self, lease: Lease) -> None:
        """Do what is due now. Raises TransientError when something is away, StaleGeneration when the role is lost."""


@runtime_checkable
class Stoppable(Protocol):
    """A follower with threads of its own."""

    def stop(self) -> None:
        """End them; called once, when the process ends, while the role is still held."""


@dataclass
class FollowerState:
    """How a follower fares.

    Attributes
    ----------
    failures: cycles that failed since the start. error: why the last one failed, "" when it did not.
    """

    cycles: int = 0
    failures: int = 0
    error: str = ""
    wake: threading.Event = field(default_factory=threading.Event)


class IncidentService:
    """Runs the engine and its followers; several processes may, one at a time has the role.

    Parameters
    ----------
    holder: names this process among those that want the role. cluster: of incidents about Flightwatch itself.
    verify: checks signatures of agents' events; None accepts all (single machine).
    """

    def __init__(
        self,
        control: Control,
        bus: Bus,
        context: Context,
        clock: Clock,
        settings: IncidentSettings,
        fast: FastEvents,
        followers: Sequence[Follower],
        *,
        holder: str,
        cluster: str,
        verify: Verify | None = None,
    ) -> None:
        self._control, self._bus, self._context, self._clock = control, bus, context, clock
        self._settings, self._fast, self._followers = settings, fast, list(followers)
        self._holder, self._verify = holder, verify
        self._writes = EngineWrites(control)
        self.engine = Engine(self._writes, context, clock, settings, cluster)
        self.follower_states = {one.name: FollowerState() for one in self._followers}
        self._lease: Lease | None = None
        self._finished_s = float("-inf")
        self._read_bytes = _FIRST_BYTES
        self._trouble = Occasionally(60.0)

    @property
    def active(self) -> bool:
        """Say whether this process holds the role and its engine gets on."""
        return self._lease is not None and self._clock.monotonic_s() - self._finished_s < _STUCK_SECONDS

    def health(self) -> dict[str, Any]:
        """Return the state of the service as JSON-ready values."""
        counters = self.engine.counters
        return {
            "active": self.active,
            "epoch": None if self._lease is None else self._lease.epoch,
            "blind": self.engine.blind,
            "statements": counters.statements,
            "opened": counters.opened,
            "resolved": counters.resolved,
            "followers": {
                name: {"cycles": one.cycles, "failures": one.failures, "error": one.error}
                for name, one in self.follower_states.items()
            },
        }

    def run(self, stop: threading.Event) -> None:
        """Wait for the role, then serve; trouble with the bus or the database is waited out."""
        threads = [threading.Thread(target=self._context.run, args=(stop,), name="incidents-context", daemon=True)]
        threads += [
            threading.Thread(target=self._follow, args=(one, stop), name=f"incidents-{one.name}", daemon=True)
            for one in self._followers
        ]
        for thread in threads:
            thread.start()
        try:
            while not stop.is_set():
                self._try_to_serve(stop)
        finally:
            for state in self.follower_states.values():
                state.wake.set()
            for thread in threads:
                thread.join(10.0)

    def _try_to_serve(self, stop: threading.Event) -> None:
        try:
            lease = self._control.leases.acquire(ROLE, self._holder, self._settings.lease_seconds)
            if lease is None:
                stop.wait(min(1.0, self._settings.lease_seconds / 4))
                return
            self._serve(lease, stop)
        except StaleGeneration:
            self._read_bytes = max(_LEAST_BYTES, self._read_bytes // 8)
            log.warning("The role of the incident engine was lost; what was in hand comes again.")
        except FlightwatchError as error:
            if self._trouble.due():
                log.warning("The incident engine waits: %s", error)
            stop.wait(1.0)
        finally:
            self._lease = None

    def _serve(self, lease: Lease, stop: threading.Event) -> None:
        log.info("This process is the incident engine (epoch %d).", lease.epoch)
        self.engine.forget_memory()
        self._fast.forget()
        subscription = self._bus.subscribe(list(TOPICS), GROUP)
        try:
            intake = Intake(self._bus, subscription, self._writes.positions(), self._fast, self._verify)
            self._finished_s = self._clock.monotonic_s()
            self._lease = lease
            renew_at_s = self._clock.monotonic_s() + self._settings.lease_seconds / 3
            while not stop.is_set():
                self.step(intake, lease)
                if self._clock.monotonic_s() >= renew_at_s:
                    lease = self._lease = self._control.leases.renew(lease, self._settings.lease_seconds)
                    renew_at_s = self._clock.monotonic_s() + self._settings.lease_seconds / 3
        finally:
            subscription.close()
        # What is on its way ends under the lease it began with.
        for one in self._followers:
            if isinstance(one, Stoppable):
                one.stop()
        self._control.leases.release(lease)

    def step(self, intake: Intake, lease: Lease) -> Taken:
        """Take one batch in and let people hear of it.

        How far the bus was read is stored with what was made of it, or with the next look at open incidents, a
        second later at most: most batches are ordinary events of which nothing is made.

        Raises
        ------
        TransientError, StaleGeneration: it was not stored; a new `Intake` gives it again.
        """
        patience = max(_SHORTEST_POLL_SECONDS, min(_POLL_SECONDS, self.engine.due_in_seconds()))
        taken = intake.read(self._read_bytes, patience, self._clock.now_ms)
        told = False
        if taken.statements or self.engine.due_in_seconds() <= 0:
            began_s = self._clock.monotonic_s()
            told = self.engine.cycle(lease, taken.statements, taken.positions)
            self._adapt(self._clock.monotonic_s() - began_s)
            try:
                intake.done(taken)
            except StaleGeneration:
                log.info("A partition passed to another member; what was taken of it is stored.")
        self._finished_s = self._clock.monotonic_s()
        if told:
            for one in self._followers:
                if one.urgent:
                    self.follower_states[one.name].wake.set()
        return taken

    def _adapt(self, seconds: float) -> None:
        """Read less at once when a batch took long: one that outlives the lease would never be stored."""
        if seconds > self._settings.lease_seconds / 8:
            self._read_bytes = max(_LEAST_BYTES, self._read_bytes // 2)
        elif seconds < self._settings.lease_seconds / 32:
            self._read_bytes = min(_MOST_BYTES, round(self._read_bytes * 1.5))

    def _follow(self, follower: Follower, stop: threading.Event) -> None:
        state = self.follower_states[follower.name]
        trouble = Occasionally(60.0)
        while not stop.is_set():
            state.wake.wait(_FOLLOW_SECONDS)
            state.wake.clear()
            lease = self._lease
            if lease is None or not self.active or stop.is_set():
                continue
            try:
                follower.cycle(lease)
                state.cycles += 1
                state.error = ""
                continue
            except StaleGeneration:
                continue
            except TransientError as error:
                state.error = str(error)
                if trouble.due():
                    log.warning("%s of incidents waits: %s", follower.name, error)
            except Exception as error:  # a runner: one follower must not take the others along
                state.error = f"{type(error).__name__}: {error}"
                log.exception("%s of incidents failed; it tries again.", follower.name)
            state.failures += 1
            stop.wait(_PAUSE_AFTER_FAILURE_SECONDS)

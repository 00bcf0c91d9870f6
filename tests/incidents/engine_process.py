"""An incident engine as a process of its own, with a follower that sends messages into a file.

python engine_process.py CONTROL_URL BUS_URL MESSAGES HOLDER LEASE_SECONDS
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from flightwatch.core.clock import SystemClock
from flightwatch.incidents.context import Context
from flightwatch.incidents.fast_events import FastEvents, event_detectors
from flightwatch.incidents.service import IncidentService
from flightwatch.incidents.settings import IncidentSettings
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.control.alert_needs import AlertNeeds
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.control.settings import ControlSettings


class FileMessages:
    """Appends each due message to a file, after it was marked in a guarded transaction."""

    name = "messages"
    urgent = True

    def __init__(self, control: Control, path: Path) -> None:
        self._control, self._path = control, path

    def cycle(self, lease: Lease) -> None:
        needs = AlertNeeds(self._control)
        while waiting := needs.waiting():
            with self._control.leases.guarded(lease) as connection:
                needs.handled(connection, [need.sequence for need in waiting])
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(f"{need.incident.id} {need.reason.value}\n" for need in waiting)


def main() -> None:
    control_url, bus_url, messages, holder, lease_seconds = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    clock = SystemClock()
    settings = BusSettings(session_timeout_seconds=2.0)
    bus, control = open_bus(bus_url, settings, clock), open_control(control_url, ControlSettings())
    service = IncidentService(
        control, bus, Context(None, clock), clock,
        IncidentSettings(lease_seconds=float(lease_seconds), settle_seconds=0.2),
        FastEvents(event_detectors()), [FileMessages(control, Path(messages))],
        holder=f"{holder}:{os.getpid()}", cluster="lab",
    )  # fmt: skip
    print("READY", flush=True)
    service.run(stop)


if __name__ == "__main__":
    main()

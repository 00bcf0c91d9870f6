"""A process that sends what waits in a control database, to be killed; arguments: control URL, webhook URL."""

from __future__ import annotations

import sys
import time

from flightwatch.core.clock import SystemClock
from flightwatch.incidents.alert_settings import AlertSettings, ChannelSettings
from flightwatch.incidents.channels import build_channel
from flightwatch.incidents.delivery import Alerting
from flightwatch.incidents.facts import FactReader
from flightwatch.incidents.messages import Messages
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from flightwatch.incidents.routes import Routes
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.settings import ControlSettings


def main(control_url: str, hook_url: str) -> None:
    """Hold the role and send until killed."""
    clock, settings = SystemClock(), AlertSettings(burst=100_000)
    control = open_control(control_url, ControlSettings())
    outgoing = Outgoing(OutgoingSettings(allowed_addresses=("127.0.0.1",)))
    channels = {
        name: build_channel(name, ChannelSettings(service="webhook", url=f"{hook_url}/{name}"), outgoing)
        for name in ("one", "two")
    }
    incidents = IncidentRecords(control)
    facts = FactReader(incidents, ActionRecords(control, "lab"), None, settings, clock)
    messages = Messages(incidents, facts, settings, clock, "lab")
    alerting = Alerting(AlertRecords(control), incidents, channels, Routes({}, channels), messages, settings, clock)
    lease = None
    while lease is None:
        lease = control.leases.acquire("incidents", "child", 600.0)
        time.sleep(0.05)
    print("READY", flush=True)
    while True:
        alerting.cycle(lease)
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`flightwatch engine`: the incident engine alone, for clusters; one of several processes holds the role."""

from __future__ import annotations

import argparse
import threading
from contextlib import ExitStack

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.engine_parts import incident_service
from flightwatch.cli.sections import load_settings
from flightwatch.cli.stopping import when_asked_to_stop
from flightwatch.core.clock import SystemClock
from flightwatch.core.logs import configure
from flightwatch.core.vocabulary import ExitCode
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.ingest.settings import IngestSettings
from flightwatch.pipeline.ingest.signatures import SignatureCheck
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import wait_until_migrated
from flightwatch.pipeline.store.settings import StoreSettings

HELP = "Turn findings and grave events into incidents, messages and proposals; one process at a time holds the role."
EPILOG = "example:\n  flightwatch engine --config /etc/flightwatch/flightwatch.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; another process takes the role over at once."""
    settings = load_settings(arguments.config)
    common = settings.section(CommonSettings)
    configure(common.log_level, common.log_format)
    stop, clock = threading.Event(), SystemClock()
    when_asked_to_stop(stop.set)
    with ExitStack() as stack:
        bus = open_bus(common.bus_url, settings.section(BusSettings), clock)
        stack.callback(bus.close)
        control = open_control(common.control_url, settings.section(ControlSettings))
        stack.callback(control.close)
        store = open_store(common.store_url, settings.section(StoreSettings))
        stack.callback(store.close)
        if not wait_until_migrated(store, stop):
            return ExitCode.DONE
        required = settings.section(IngestSettings).require_signatures
        verify = SignatureCheck(control.agent_keys.valid, clock=clock, required=required)
        service = incident_service(settings, common, bus, control, store, clock, verify)
        print("READY", flush=True)
        service.run(stop)
    return ExitCode.DONE

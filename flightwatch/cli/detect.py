"""`flightwatch detect`: run the detectors over the live store (cluster installations; `up` includes them)."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from contextlib import ExitStack

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.sections import load_settings
from flightwatch.core.clock import SystemClock
from flightwatch.core.logs import configure
from flightwatch.core.vocabulary import ExitCode
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.leases import Leases
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.loop import DetectionLoop
from flightwatch.pipeline.detection.publish import FindingPublisher
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.settings import StoreSettings

HELP = "Run the detectors over the live store and publish findings; one process at a time holds the role."
EPILOG = "example:\n  flightwatch detect --config /etc/flightwatch/flightwatch.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    settings = load_settings(arguments.config)
    common = settings.section(CommonSettings)
    configure(common.log_level, common.log_format)
    stop, clock = threading.Event(), SystemClock()
    with ExitStack() as stack:
        bus = open_bus(common.bus_url, settings.section(BusSettings), clock)
        stack.callback(bus.close)
        control = open_control(common.control_url, settings.section(ControlSettings))
        stack.callback(control.close)
        store = open_store(common.store_url, settings.section(StoreSettings))
        stack.callback(store.close)
        publisher = FindingPublisher(bus, clock, common.cluster, common.node_name)
        holder = f"{common.node_name}:{os.getpid()}"
        loop = DetectionLoop(
            store, publisher.publish, clock, settings.section(DetectSettings), leases=Leases(control), holder=holder
        )

        def end(number: int, frame: object) -> None:
            del number, frame
            stop.set()
            loop.wake.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        loop.run(stop)
    return ExitCode.DONE

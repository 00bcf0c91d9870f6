"""`flightwatch console`: the pages alone, beside a pipeline that runs elsewhere."""

from __future__ import annotations

import argparse
import threading
from contextlib import ExitStack

from flightwatch.cli.alert_parts import channels_of
from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.detection_parts import expectations_to_show
from flightwatch.cli.sections import load_settings
from flightwatch.cli.stopping import when_asked_to_stop
from flightwatch.core.clock import SystemClock
from flightwatch.core.logs import configure
from flightwatch.core.vocabulary import ExitCode
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.app import create_app
from flightwatch.dashboard.serve import HttpServer, bind_port, is_loopback
from flightwatch.dashboard.services import Services
from flightwatch.dashboard.settings import ConsoleSettings
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.publish import FindingPublisher
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.profiles.settings import ProfilesSettings
from flightwatch.pipeline.status import StatusProbe
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import wait_until_migrated
from flightwatch.pipeline.store.settings import StoreSettings

HELP = "Serve the console alone: reads the store and the bus that the settings name (`up` includes it)."
EPILOG = "example:\n  flightwatch console --config /etc/flightwatch/flightwatch.toml --port 8080"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--host", help="address to listen on (default: console.host)")
    parser.add_argument("--port", type=int, help="port; taken: it ends with a message (default: console.port)")
    parser.add_argument("--trust-network", action="store_true", help="listen beyond this machine without a login")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    settings = load_settings(arguments.config)
    common, console = settings.section(CommonSettings), settings.section(ConsoleSettings)
    configure(common.log_level, common.log_format)
    stop = threading.Event()
    when_asked_to_stop(stop.set)
    host = arguments.host or console.host
    trusted = arguments.trust_network or console.trust_network
    clock = SystemClock()
    with ExitStack() as stack:
        bound = bind_port(
            host, console.port if arguments.port is None else arguments.port, trust_network=trusted, next_free=False,
            login=settings.section(AccessSettings).login_required,
        )  # fmt: skip
        stack.callback(bound.close)
        bus = open_bus(common.bus_url, settings.section(BusSettings), clock)
        stack.callback(bus.close)
        store = open_store(common.store_url, settings.section(StoreSettings))
        stack.callback(store.close)
        if not wait_until_migrated(store, stop):
            return ExitCode.DONE
        control = open_control(common.control_url, settings.section(ControlSettings))
        stack.callback(control.close)
        access = AccessControl(settings.section(AccessSettings), control, loopback_only=is_loopback(host))
        probe = StatusProbe(
            bus, store, clock, cluster=common.cluster, folder=store.folder, components=_no_components,
            bus_settings=settings.section(BusSettings),
        )  # fmt: skip
        services = Services(
            store,
            probe,
            lambda: None,
            control,
            access,
            profile_limits=settings.section(ProfilesSettings),
            outgoing=Outgoing(settings.section(OutgoingSettings)),
            publish_findings=FindingPublisher(bus, clock, common.cluster, common.node_name).publish,
            channels=channels_of(settings, clock),
            actions=settings.section(ActionSettings),
            expectations=expectations_to_show(settings.section(DetectSettings)),
        )
        app = create_app(services, loopback_only=is_loopback(host), base_path=console.base_path)
        server = HttpServer("console", app, bound)
        server.start()
        stack.callback(server.stop)
        print(f"READY http://{host}:{bound.getsockname()[1]}", flush=True)
        while not stop.wait(1.0):
            if not server.alive:
                return ExitCode.FAILED
    return ExitCode.DONE


def _no_components() -> dict[str, str]:
    """Return nothing: this process runs no part of the pipeline."""
    return {}

"""`flightwatch up`: everything on one machine, in one process and one agent."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from contextlib import ExitStack
from pathlib import Path

from flightwatch.cli.agent import receiver_settings
from flightwatch.cli.alert_parts import channels_of
from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.demo_cluster import DemoCluster
from flightwatch.cli.demo_inbox import DemoInbox
from flightwatch.cli.demo_job import DemoJob
from flightwatch.cli.detection_parts import detection_loop
from flightwatch.cli.engine_parts import engine_state, incident_service
from flightwatch.cli.instance import AgentProcess, InstanceLock, Worker, child_environment
from flightwatch.cli.local_client import SOCKET_NAME
from flightwatch.cli.profile_worker import keys_of_agent, profile_worker
from flightwatch.cli.sections import load_settings
from flightwatch.cli.stopping import when_asked_to_stop
from flightwatch.collectors.identity import checked_node_name
from flightwatch.collectors.settings import AgentSettings
from flightwatch.core.clock import SystemClock
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.logs import configure
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.api.local import create_local_app
from flightwatch.dashboard.app import create_app
from flightwatch.dashboard.serve import HttpServer, bind_port, bind_unix, is_loopback
from flightwatch.dashboard.services import Services
from flightwatch.dashboard.settings import ConsoleSettings
from flightwatch.incidents.outgoing import Outgoing, OutgoingSettings
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.publish import FindingPublisher
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.ingest.settings import IngestSettings
from flightwatch.pipeline.ingest.signatures import SignatureCheck
from flightwatch.pipeline.profiles.server_key import server_key
from flightwatch.pipeline.profiles.settings import ProfilesSettings
from flightwatch.pipeline.status import StatusProbe
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings

HELP = "Run everything on this machine: bus, ingest, store, control database, console and this machine's agent."
EPILOG = (
    "example:\n  flightwatch up --data-dir ./flightwatch-data\n"
    "  flightwatch up --config /etc/flightwatch/flightwatch.toml"
)

log = logging.getLogger(__name__)
#: Time for ingest to store what the agent sent last.
DRAIN_SECONDS = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="folder of all data (default: flightwatch.data_dir)")
    parser.add_argument("--port", type=int, help="port of the console, or the next free one (default: console.port)")
    parser.add_argument("--no-agent", action="store_true", help="do not collect on this machine")
    parser.add_argument(
        "--demo", action="store_true", help="also a small training job and a simulated cluster, both with faults"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; everything sent is stored before it ends."""
    if arguments.data_dir:
        os.environ["FLIGHTWATCH_FLIGHTWATCH_DATA_DIR"] = str(Path(arguments.data_dir).absolute())
    settings = load_settings(arguments.config)
    common = settings.section(CommonSettings)
    configure(common.log_level, common.log_format)
    stop = threading.Event()
    when_asked_to_stop(stop.set)
    with ExitStack() as stack:
        url = _start(stack, settings, common, arguments)
        if arguments.demo:
            cluster = DemoCluster(common, arguments.config)
            print(cluster.start(), flush=True)
            stack.callback(cluster.stop)
        if arguments.demo and not arguments.no_agent:
            job = DemoJob(receiver_settings(settings, common).socket, Path(common.data_dir))
            print(job.start(), flush=True)
            stack.callback(job.stop)
        print(f"READY {url}", flush=True)
        stop.wait()
        log.info("stopping: the agent sends what it has, ingest stores it")
    log.info("stopped")
    return ExitCode.DONE


def _start(stack: ExitStack, settings: Loaded, common: CommonSettings, arguments: argparse.Namespace) -> str:
    """Start all parts in order; `stack` stops them in reverse. Return the console's URL."""
    clock = SystemClock()
    checked_node_name(common.node_name, "flightwatch.node" if common.node else "the host name")
    data_dir = Path(common.data_dir)
    lock = InstanceLock(data_dir)
    lock.acquire()
    stack.callback(lock.release)
    console = settings.section(ConsoleSettings)
    bound = bind_port(
        console.host, console.port if arguments.port is None else arguments.port,
        trust_network=console.trust_network, login=settings.section(AccessSettings).login_required,
    )  # fmt: skip
    stack.callback(bound.close)

    bus, control, store = _open(stack, settings, common, clock)
    ingest_settings = settings.section(IngestSettings)
    signatures = SignatureCheck(control.agent_keys.valid, clock=clock, required=ingest_settings.require_signatures)
    ingest = Ingest(
        bus,
        store,
        ingest_settings,
        clock,
        cluster=common.cluster,
        node=common.node_name,
        verify=signatures,
        on_rows=lambda rows: detection.notice(rows),
    )
    worker = Worker("ingest", ingest.run)
    key = server_key(data_dir)
    detection = detection_loop(settings, common, bus, store, control, key, clock, lambda: probe()["lag_seconds"])
    detect = Worker("detect", detection.run, detection.wake.set)
    profiles = profile_worker(settings, common, key, bus, control, store, signatures)
    channels = []
    if arguments.demo:
        inbox = DemoInbox()
        channels.append(inbox.start(clock))
        stack.callback(inbox.stop)
    service = incident_service(settings, common, bus, control, store, clock, signatures, channels)
    incidents = Worker("incidents", service.run)
    agent_keys = keys_of_agent(settings.section(AgentSettings).control_keys, key)
    agent = AgentProcess(
        ["--config", arguments.config] if arguments.config else [], child_environment(common) | agent_keys
    )

    def components() -> dict[str, str]:
        states = {"ingest": worker.state, "detect": detect.state, "profiles": profiles.state}
        states["incidents"] = engine_state(incidents.state, service)
        return states if arguments.no_agent else states | {"agent": agent.state}

    probe = StatusProbe(
        bus, store, clock, cluster=common.cluster, folder=data_dir, components=components,
        bus_settings=settings.section(BusSettings), ingest_error=lambda: ingest.metrics.snapshot().last_error,
    )  # fmt: skip

    def missing() -> str | None:
        if worker.state != "running":
            return f"ingest is {worker.state}"
        return None if probe()["lag_seconds"] is not None else "the bus does not answer"

    access = AccessControl(settings.section(AccessSettings), control, loopback_only=is_loopback(console.host))
    services = Services(
        store,
        probe,
        missing,
        control,
        access,
        channels=channels_of(settings, clock) | {one.name: one for one in channels},
        profile_limits=settings.section(ProfilesSettings),
        outgoing=Outgoing(settings.section(OutgoingSettings)),
        publish_findings=FindingPublisher(bus, clock, common.cluster, common.node_name).publish,
    )
    for part in (worker, detect, profiles, incidents):
        part.start()
        stack.callback(part.stop, DRAIN_SECONDS)
    local = HttpServer("local", create_local_app(services), bind_unix(data_dir / SOCKET_NAME))
    local.start()
    stack.callback(local.stop)
    stack.callback((data_dir / SOCKET_NAME).unlink, missing_ok=True)
    http = HttpServer(
        "console", create_app(services, loopback_only=is_loopback(console.host), base_path=console.base_path), bound
    )
    http.start()
    stack.callback(http.stop)
    if not arguments.no_agent:
        agent.start()
        stack.callback(_drain, probe, agent)
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _open(stack: ExitStack, settings: Loaded, common: CommonSettings, clock: SystemClock) -> tuple[Bus, Control, Store]:
    """Open the bus with its topics, the control database and the migrated store."""
    bus = open_bus(common.bus_url, settings.section(BusSettings), clock)
    stack.callback(bus.close)
    setup_topics(bus, settings.section(BusSettings))
    control = open_control(common.control_url, settings.section(ControlSettings))
    stack.callback(control.close)
    store = open_store(common.store_url, settings.section(StoreSettings))
    stack.callback(store.close)
    migrate(store)
    return bus, control, store


def _drain(probe: StatusProbe, agent: AgentProcess) -> None:
    """Stop the agent, then wait until ingest has stored what it sent."""
    agent.stop()
    clock = SystemClock()
    deadline = clock.monotonic_s() + DRAIN_SECONDS
    while clock.monotonic_s() < deadline:
        try:
            if not any(part["behind"] for part in probe.fresh()["partitions"]):
                return
        except FlightwatchError as error:
            log.warning("cannot see how far ingest is: %s", error)
            return
        clock.sleep_s(0.2)
    log.warning("ingest did not finish in %.0f s; the bus keeps the rest for the next start", DRAIN_SECONDS)

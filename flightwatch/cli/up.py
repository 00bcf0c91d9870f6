"""`flightwatch up`: everything on one machine, in one process and one agent."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from flightwatch.cli.agent import receiver_settings
from flightwatch.cli.alert_parts import channels_of
from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.demo_cluster import DemoCluster
from flightwatch.cli.demo_inbox import DemoInbox
from flightwatch.cli.demo_job import DemoJob
from flightwatch.cli.detection_parts import detection_loop, expectations_of
from flightwatch.cli.doctor import profiler_environment
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
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.channels import Channel
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.publish import FindingPublisher
from flightwatch.pipeline.detection.settings import DetectSettings
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
#: Looks, half a second apart, for an agent whose profiler answers; the demo's job does without where none does.
PROFILER_TRIES = 10


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
            _start_demo(stack, settings, common, arguments, stop)
        print(f"READY {url}", flush=True)
        stop.wait()
        log.info("stopping: the agent sends what it has, ingest stores it")
    log.info("stopped")
    return ExitCode.DONE


def _start_demo(
    stack: ExitStack, settings: Loaded, common: CommonSettings, arguments: argparse.Namespace, stop: threading.Event
) -> None:
    cluster = DemoCluster(common, arguments.config)
    print(cluster.start(), flush=True)
    stack.callback(cluster.stop)
    if arguments.no_agent:
        return
    # Each start is an attempt of its own: its steps begin at 0 again.
    more = {"FLIGHTWATCH_RUN": f"r{SystemClock().now_ms() // 1000}"}
    for _ in range(PROFILER_TRIES):  # the agent has just been started
        if (asks := profiler_environment(settings, common)) or stop.wait(0.5):
            more |= asks
            break
    job = DemoJob(receiver_settings(settings, common).socket, Path(common.data_dir), more=more)
    print(job.start(), flush=True)
    stack.callback(job.stop)


@dataclass
class _Base:
    """What every part stands on."""

    settings: Loaded
    common: CommonSettings
    clock: SystemClock
    bus: Bus
    control: Control
    store: Store


class _Parts:
    """The parts that run in this process, made and not started, and what they say of themselves."""

    def __init__(self, base: _Base, inbox: Sequence[Channel], arguments: argparse.Namespace) -> None:
        settings, common, clock = base.settings, base.common, base.clock
        bus, control, store = base.bus, base.control, base.store
        self._base, self._inbox = base, inbox
        wanted = settings.section(IngestSettings)
        signatures = SignatureCheck(control.agent_keys.valid, clock=clock, required=wanted.require_signatures)
        self._ingest = Ingest(
            bus, store, wanted, clock, cluster=common.cluster, node=common.node_name, verify=signatures,
            on_rows=lambda rows: detection.notice(rows),
        )  # fmt: skip
        key = server_key(Path(common.data_dir))
        detection = detection_loop(
            settings, common, bus, store, control, key, clock, lambda: self.probe()["lag_seconds"]
        )
        self._service = incident_service(settings, common, bus, control, store, clock, signatures, inbox)
        self.workers = (
            Worker("ingest", self._ingest.run),
            Worker("detect", detection.run, detection.wake.set),
            profile_worker(settings, common, key, bus, control, store, signatures),
            Worker("incidents", self._service.run),
        )
        agent_keys = keys_of_agent(settings.section(AgentSettings).control_keys, key)
        given = ["--config", arguments.config] if arguments.config else []
        self.agent = None if arguments.no_agent else AgentProcess(given, child_environment(common) | agent_keys)
        self.probe = StatusProbe(
            bus, store, clock, cluster=common.cluster, folder=Path(common.data_dir), components=self.components,
            bus_settings=settings.section(BusSettings),
            ingest_error=lambda: self._ingest.metrics.snapshot().last_error,
        )  # fmt: skip

    def components(self) -> dict[str, str]:
        """Return each part's state."""
        states = {worker.name: worker.state for worker in self.workers}
        states["incidents"] = engine_state(states["incidents"], self._service)
        return states if self.agent is None else states | {"agent": self.agent.state}

    def missing(self) -> str | None:
        """Return why nothing can be served, None when it can."""
        ingest = self.workers[0]
        if ingest.state != "running":
            return f"ingest is {ingest.state}"
        return None if self.probe()["lag_seconds"] is not None else "the bus does not answer"

    def services(self, *, loopback_only: bool) -> Services:
        """Return what the console and the API are given."""
        base, settings = self._base, self._base.settings
        publisher = FindingPublisher(base.bus, base.clock, base.common.cluster, base.common.node_name)
        return Services(
            base.store, self.probe, self.missing, base.control,
            AccessControl(settings.section(AccessSettings), base.control, loopback_only=loopback_only),
            channels=channels_of(settings, base.clock) | {one.name: one for one in self._inbox},
            profile_limits=settings.section(ProfilesSettings),
            outgoing=Outgoing(settings.section(OutgoingSettings)), publish_findings=publisher.publish,
            actions=settings.section(ActionSettings),
            expectations=expectations_of(settings.section(DetectSettings)),
        )  # fmt: skip


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
    base = _Base(settings, common, clock, *_open(stack, settings, common, clock))
    inbox = []
    if arguments.demo:
        receiver = DemoInbox()
        inbox.append(receiver.start(clock))
        stack.callback(receiver.stop)
    parts = _Parts(base, inbox, arguments)
    services = parts.services(loopback_only=is_loopback(console.host))
    for part in parts.workers:
        part.start()
        stack.callback(part.stop, DRAIN_SECONDS)
    local = HttpServer("local", create_local_app(services), bind_unix(data_dir / SOCKET_NAME))
    local.start()
    stack.callback(local.stop)
    stack.callback((data_dir / SOCKET_NAME).unlink, missing_ok=True)
    app = create_app(services, loopback_only=is_loopback(console.host), base_path=console.base_path)
    http = HttpServer("console", app, bound)
    http.start()
    stack.callback(http.stop)
    if parts.agent is not None:
        parts.agent.start()
        stack.callback(_drain, parts.probe, parts.agent)
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

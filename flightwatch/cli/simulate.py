"""`flightwatch simulate`: a simulated cluster, live, through the bus of this installation."""

from __future__ import annotations

import argparse
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from flightwatch.cli.agent import end_with
from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.sections import load_settings
from flightwatch.cli.stopping import when_asked_to_stop
from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.ed25519 import signing_key
from flightwatch.core.errors import ConfigError, TransientError
from flightwatch.core.logs import configure
from flightwatch.core.protocols import Row
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.ingest.settings import IngestSettings
from flightwatch.simulator.agents import SimulatedAgents
from flightwatch.simulator.live_cluster import LiveCluster
from flightwatch.simulator.plan import cluster_of, jobs_on, parse_fault, standard_faults

HELP = "Send a simulated cluster, live, through the bus of this installation, marked as simulated."
EPILOG = """examples:
  flightwatch simulate --data-dir ./flightwatch-data --gpus 1024 --seconds 600
  flightwatch simulate --gpus 64 --fault slow_gpu@3:5,severity=0.2,after=60 --fault cooling_zone@0,after=120

A fault is KIND@NODE[:DEVICE][-OTHERNODE][,severity=S][,after=SECONDS][,for=SECONDS]; NODE and DEVICE count from 0.
Without --fault there are three: a slow GPU, a failing cooling zone, a port that loses packets. Every node, job, rack
and serial number begins with the name (default: sim), and so does the cluster column of its rows. It runs
until SIGTERM or for --seconds; --history first sends that many seconds of the past without faults. Where
ingest.require_signatures is set, the simulated nodes get a key that is revoked at the end. `flightwatch drill` injects
faults, grades what was found and removes every trace."""
#: Longest stretch of simulated time in one go: what lies in memory.
SLICE_SECONDS = 60.0
_NAME = re.compile(r"sim[a-z0-9-]{0,40}")

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="data folder of the instance (default: flightwatch.data_dir)")
    parser.add_argument("--gpus", type=int, default=1024, help="accelerators of the cluster (default: 1024)")
    parser.add_argument("--fault", action="append", default=[], metavar="FAULT", help="a fault; repeat for more")
    parser.add_argument("--healthy", action="store_true", help="no faults")
    parser.add_argument("--seconds", type=float, help="end after so many seconds (default: at SIGTERM)")
    parser.add_argument("--history", type=float, default=0.0, help="seconds of healthy past sent first (default: 0)")
    parser.add_argument("--step-seconds", type=float, default=5.0, help="duration of a training step (default: 5)")
    parser.add_argument("--sample-seconds", type=float, default=10.0, help="interval of telemetry (default: 10)")
    parser.add_argument("--name", default="sim", help="name of the cluster, begins with sim (default: sim)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same cluster (default: 1)")
    parser.add_argument("--parent", type=int, help="process id of the process that started this one: end with it")


def run(arguments: argparse.Namespace) -> int:
    """Send until told to stop."""
    if arguments.parent is not None:
        end_with(arguments.parent)
    if arguments.data_dir:
        os.environ["FLIGHTWATCH_FLIGHTWATCH_DATA_DIR"] = os.path.abspath(arguments.data_dir)
    settings = load_settings(arguments.config)
    common = settings.section(CommonSettings)
    configure(common.log_level, common.log_format)
    stop, clock = threading.Event(), SystemClock()
    when_asked_to_stop(stop.set)
    world = live_cluster(arguments, clock.now_ms())
    with ExitStack() as stack:
        bus = open_bus(common.bus_url, settings.section(BusSettings), clock)
        stack.callback(bus.close)
        setup_topics(bus, settings.section(BusSettings))
        nodes = [world.cluster.node_name(number) for number in range(world.cluster.nodes)]
        sign = stack.enter_context(signature_of(settings, common, nodes))
        agents = SimulatedAgents(bus, clock, world.cluster.name, sign)
        print(described(world, common), flush=True)
        end_ms = None if arguments.seconds is None else clock.now_ms() + arguments.seconds * 1000
        feed(world, agents, clock, stop, end_ms, min(arguments.step_seconds, arguments.sample_seconds))
    log.info("the simulated cluster has ended")
    return ExitCode.DONE


def live_cluster(arguments: argparse.Namespace, now_ms: int) -> LiveCluster:
    """Return the cluster that the arguments describe. Raises ConfigError when they describe none."""
    if not _NAME.fullmatch(arguments.name):
        raise ConfigError(f"--name {arguments.name}: begins with sim, then small letters, digits and dashes")
    numbers = (arguments.step_seconds, arguments.sample_seconds, arguments.seconds or 1.0)
    if min(numbers) <= 0 or arguments.history < 0:
        raise ConfigError("--step-seconds, --sample-seconds and --seconds are above 0, --history is not below")
    prefix = f"{arguments.name}-"
    cluster = cluster_of(arguments.gpus, prefix, arguments.name)
    texts = [] if arguments.healthy else arguments.fault or standard_faults(cluster)
    faults = [parse_fault(text, cluster) for text in texts]
    start_ms = now_ms - round(arguments.history * 1000)
    jobs = jobs_on(cluster, prefix, arguments.step_seconds, f"r{now_ms // 1000}")
    return LiveCluster(cluster, jobs, faults, arguments.seed, start_ms, arguments.step_seconds,
                       arguments.sample_seconds, lead_s=arguments.history)  # fmt: skip


def described(world: LiveCluster, common: CommonSettings) -> str:
    """Return one line about a simulated cluster."""
    gpus = world.cluster.nodes * world.cluster.devices_per_node
    faults = ", ".join(f"{one.fault.kind} on {world.cluster.node_name(one.fault.node)} after {one.after_s:.0f} s"
                       for one in world.faults)  # fmt: skip
    jobs = ", ".join(f"{job.name} ({job.ranks} ranks)" for job in world.jobs)
    return f"simulated cluster '{world.cluster.name}' of {gpus} GPUs: {jobs}; faults: {faults or 'none'}"


def feed(
    world: LiveCluster, agents: SimulatedAgents, clock: Clock, stop: threading.Event, end_ms: float | None,
    tick_s: float,
) -> None:  # fmt: skip
    """Send the past at once, then what happens as it happens, until `stop` or `end_ms`."""
    _tried(agents, world.standing(), stop)
    at_ms = float(world.start_ms)
    while not stop.is_set():
        now_ms = clock.now_ms()
        at_ms = min(at_ms + SLICE_SECONDS * 1000, float(now_ms))
        _tried(agents, world.until(at_ms), stop)
        if end_ms is not None and now_ms >= end_ms:
            break
        if at_ms >= now_ms:
            stop.wait(tick_s)
    _tried(agents, world.ended(clock.now_ms()), stop)


def _tried(agents: SimulatedAgents, rows: Sequence[Row], stop: threading.Event) -> None:
    """Send rows; while the bus is away they are lost, as an agent's without a spool would be, and the feed goes on."""
    try:
        agents.send(rows)
    except TransientError as error:
        log.warning("simulated rows were not sent: %s", error)
        stop.wait(1.0)


@contextmanager
def signature_of(
    settings: Loaded, common: CommonSettings, nodes: Sequence[str]
) -> Iterator[Callable[[bytes], bytes] | None]:
    """Give simulated nodes a key for as long as the block runs, where ingest demands signatures; else None."""
    if not settings.section(IngestSettings).require_signatures:
        yield None
        return
    key = signing_key(secrets.token_bytes(32))
    control = open_control(common.control_url, settings.section(ControlSettings))
    try:
        for node in nodes:
            control.agent_keys.enroll(node, key.public_key.hex())
        yield key.sign
    finally:
        for node in nodes:
            control.agent_keys.revoke(node, key.public_key.hex())
        control.close()

"""`flightwatch drill`: faults into a running installation, what it found of them, and no trace afterwards."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import secrets
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flightwatch.cli.agent import receiver_settings
from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.demo_job import DemoJob
from flightwatch.cli.sections import load_settings
from flightwatch.cli.simulate import described, feed, live_cluster, signature_of
from flightwatch.cli.sql import ask
from flightwatch.cli.stopping import when_asked_to_stop
from flightwatch.core.clock import Clock, SystemClock, parse_iso_utc
from flightwatch.core.errors import ConfigError, FlightwatchError, Refused
from flightwatch.core.logs import configure
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode, FindingKind
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.erasures import Erasures
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.control.silences import Silences
from flightwatch.simulator.agents import SimulatedAgents
from flightwatch.simulator.demo_job import SLOW_RANK
from flightwatch.simulator.drill import Injected, grade_drill, injected_of

HELP = (
    "Inject faults into a running installation under a marked cluster or job, grade what it found, remove every trace."
)
EPILOG = """examples:
  flightwatch drill --data-dir ./flightwatch-data
  flightwatch drill --gpus 512 --fault cooling_zone@0,after=30 --fault slow_gpu@9:3,severity=0.1 --seconds 1200
  flightwatch drill --real            (four real training processes on this machine, one of them slow)

Simulated nodes report through the bus as agents do, under a cluster named sim-drill-...; faults are written as for
`flightwatch simulate`. It ends when every fault was found, or after --seconds. No message leaves while it runs, unless
--page. Then everything stored under that name is removed (--keep leaves it). Exit codes: 0 every fault was found and
nothing else was said, 1 not so, or nothing runs."""
DEFAULT_FAULTS = ("slow_gpu@3:5,severity=0.25,after=30", "packet_loss@9,after=30", "ecc_ramp@17:2,after=30")
POLL_SECONDS = 5.0
#: How long ingest may take to store what was sent last, and the store's owner to erase.
SETTLE_SECONDS, ERASE_SECONDS = 10.0, 180.0
#: Equal steps of the real job before one rank gets slow, and about how long they take.
REAL_STEPS, REAL_SECONDS = 120, 30.0
_FINDINGS = (
    "SELECT id, kind, class, scope, node, job, rank, targets, severity, state, summary, detected_at, received_at "
    "FROM flightwatch.findings WHERE {column} = '{name}' ORDER BY detected_at LIMIT 10000"
)

_BEGAN = (
    "SELECT minOrNull(ts) AS began FROM flightwatch.rank_steps "
    "WHERE job = '{name}' AND rank = {rank} AND step >= {step}"
)


@dataclass
class _Drill:
    """What is under way: which rows are its own, what was injected."""

    column: str
    name: str
    injected: list[Injected] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="data folder of the instance (default: flightwatch.data_dir)")
    parser.add_argument("--gpus", type=int, default=256, help="simulated accelerators (default: 256)")
    parser.add_argument("--fault", action="append", default=[], metavar="FAULT", help="a fault; repeat for more")
    parser.add_argument("--real", action="store_true", help="a real job on this machine instead of a simulation")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest time to wait for findings (default: 600)")
    parser.add_argument("--history", type=float, default=900.0, help="healthy seconds before the faults (default: 900)")
    parser.add_argument("--step-seconds", type=float, default=5.0, help="duration of a training step (default: 5)")
    parser.add_argument("--sample-seconds", type=float, default=10.0, help="interval of telemetry (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same cluster (default: 1)")
    parser.add_argument("--page", action="store_true", help="let messages about it go out")
    parser.add_argument("--keep", action="store_true", help="leave what was stored")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    """Inject, wait, grade, remove."""
    if arguments.data_dir:
        os.environ["FLIGHTWATCH_FLIGHTWATCH_DATA_DIR"] = os.path.abspath(arguments.data_dir)
    if arguments.real and arguments.fault:
        raise ConfigError("--real has a fault of its own: one rank becomes slow")
    if arguments.seconds <= 0:
        raise ConfigError("--seconds is above 0")
    settings = load_settings(arguments.config)
    common = settings.section(CommonSettings)
    configure("warning", common.log_format)
    name = f"sim-drill-{secrets.token_hex(3)}"
    drill = _Drill("job" if arguments.real else "cluster", name)
    ask("SELECT count() FROM flightwatch.findings", "json", settings)
    when_asked_to_stop(drill.stop.set)
    clock = SystemClock()
    with ExitStack() as stack:
        control = open_control(common.control_url, settings.section(ControlSettings))
        stack.callback(control.close)
        _leave_no_trace(stack, control, drill, arguments, clock)
        inject = _real if arguments.real else _simulated
        inject(stack, drill, settings, arguments, clock)
        grade = _watched(drill, settings, clock, arguments.seconds)
        if arguments.real and (began_ms := _really_began(drill, settings)) is not None:
            drill.injected = [replace(one, begin_ms=began_ms) for one in drill.injected]
            grade = grade_drill(drill.injected, _findings(drill, settings))
        drill.stop.set()
    _print(grade | {drill.column: name, "kept": arguments.keep}, arguments.format)
    return ExitCode.DONE if grade["found"] == grade["injected"] and not grade["false"] else ExitCode.FAILED


def _leave_no_trace(
    stack: ExitStack, control: Control, drill: _Drill, arguments: argparse.Namespace, clock: Clock
) -> None:  # fmt: skip
    """Keep the drill quiet, and have everything of it removed when the stack ends.

    The silence ends after the removal: an incident that lost it first would be told. What is kept stays silent until
    the silence expires.
    """
    if not arguments.page:
        silence = _silence(control, drill, clock, arguments.seconds)
        if not arguments.keep:
            stack.callback(Silences(control).expire, silence, "drill")
    if not arguments.keep:
        stack.callback(_removed, control, drill, clock)


def _simulated(
    stack: ExitStack, drill: _Drill, settings: Loaded, arguments: argparse.Namespace, clock: Clock
) -> None:  # fmt: skip
    """Start a simulated cluster on a thread; it ends with the stack."""
    common = settings.section(CommonSettings)
    arguments.name, arguments.healthy = drill.name, False
    arguments.fault = arguments.fault or list(DEFAULT_FAULTS)
    world = live_cluster(arguments, clock.now_ms())
    drill.injected = [injected_of(world.cluster, world.jobs, one.fault, world.begin_ms(one)) for one in world.faults]
    bus = open_bus(common.bus_url, settings.section(BusSettings), clock)
    stack.callback(bus.close)
    nodes = [world.cluster.node_name(number) for number in range(world.cluster.nodes)]
    sign = stack.enter_context(signature_of(settings, common, nodes))
    agents = SimulatedAgents(bus, clock, drill.name, sign)
    print(described(world, common), file=sys.stderr, flush=True)
    tick_s = min(arguments.step_seconds, arguments.sample_seconds)
    thread = threading.Thread(
        target=feed, args=(world, agents, clock, drill.stop, None, tick_s), name="feed", daemon=True
    )
    thread.start()
    stack.callback(thread.join, 30.0)
    stack.callback(drill.stop.set)


def _real(stack: ExitStack, drill: _Drill, settings: Loaded, arguments: argparse.Namespace, clock: Clock) -> None:
    """Start the demo's training job under the drill's name; its rank 2 gets slow after half a minute."""
    common = settings.section(CommonSettings)
    job = DemoJob(receiver_settings(settings, common).socket, Path(common.data_dir), drill.name, REAL_STEPS)
    told = job.start()
    stack.callback(job.stop)
    if told.startswith("no training job"):
        raise Refused(told)
    print(told, file=sys.stderr, flush=True)
    begin_ms = clock.now_ms() + round(REAL_SECONDS * 1000) // 2
    kinds = frozenset((FindingKind.SLOW.value,))
    drill.injected = [
        Injected("slow_rank", kinds, frozenset((f"rank {SLOW_RANK}",)), frozenset((drill.name,)), begin_ms)
    ]


def _watched(drill: _Drill, settings: Loaded, clock: Clock, seconds: float) -> dict[str, Any]:
    """Look at the findings until all faults are found or time is over; return the grade."""
    deadline_s = clock.monotonic_s() + seconds
    shown = -1
    while True:
        grade = grade_drill(drill.injected, _findings(drill, settings))
        if grade["found"] != shown:
            shown = grade["found"]
            print(f"{shown} of {grade['injected']} faults found", file=sys.stderr, flush=True)
        if grade["found"] == grade["injected"] or clock.monotonic_s() >= deadline_s or drill.stop.is_set():
            return grade
        drill.stop.wait(POLL_SECONDS)


def _really_began(drill: _Drill, settings: Loaded) -> int | None:
    """Return when the real job's rank got slow: at a step, and how long the steps before took is the machine's."""
    answer = ask(_BEGAN.format(name=drill.name, step=REAL_STEPS, rank=SLOW_RANK), "json", settings)
    told = next((json.loads(line)["began"] for line in answer.splitlines() if line.strip()), None)
    return None if told is None else parse_iso_utc(str(told))


def _findings(drill: _Drill, settings: Loaded) -> list[dict[str, Any]]:
    answer = ask(_FINDINGS.format(column=drill.column, name=drill.name), "json", settings)
    rows = [json.loads(line) for line in answer.splitlines() if line.strip()]
    for row in rows:
        for name in ("detected_at", "received_at"):
            row[name] = parse_iso_utc(str(row[name])) if row[name] is not None else None
    return rows


def _silence(control: Control, drill: _Drill, clock: Clock, seconds: float) -> str:
    """Keep incidents of the drill quiet; return the silence's id."""
    expires_ms = clock.now_ms() + round((seconds + ERASE_SECONDS + 3600) * 1000)
    silences = Silences(control)
    return silences.create({drill.column: drill.name}, getpass.getuser(), "a drill", expires_at_ms=expires_ms).id


def _removed(control: Control, drill: _Drill, clock: Clock) -> None:
    """Ask for the removal of everything marked and wait until it is done; runs when the injection has ended."""
    clock.sleep_s(SETTLE_SECONDS)
    erasures = Erasures(control)
    try:
        erasures.ask(drill.column, drill.name)
        deadline_s = clock.monotonic_s() + ERASE_SECONDS
        while clock.monotonic_s() < deadline_s:
            done = erasures.get(drill.column, drill.name)
            if done is not None and done.done_at_ms is not None:
                print(f"removed {done.rows} rows of {drill.name}", file=sys.stderr, flush=True)
                return
            clock.sleep_s(0.5)
    except FlightwatchError as error:
        print(f"flightwatch drill: {error}", file=sys.stderr)
    print(
        f"flightwatch drill: {drill.name} was not removed yet; the next detection process that runs does it",
        file=sys.stderr,
    )


def _print(grade: dict[str, Any], form: str) -> None:
    if form == "json":
        print(json.dumps(grade, ensure_ascii=False))
        return
    for one in grade["faults"]:
        told = f"found after {one['detect_seconds']:.0f} s: {one['summary']}" if one["found"] else "NOT FOUND"
        print(f"{one['fault']} on {one['target']}: {told}")
    for one in grade["false"]:
        print(f"false: {one['summary']}")
    figures = ", ".join(f"{name} {'-' if grade[name] is None else grade[name]}" for name in ("recall", "precision"))
    print(f"{grade['found']} of {grade['injected']} faults found, {figures}, {grade['related']} related findings")

"""`flightwatch agent`: collect on this node and send; `--once --print`; `enroll`."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.sections import load_agent_settings
from flightwatch.cli.stopping import when_asked_to_stop
from flightwatch.collectors.environment import Environment, environment_at
from flightwatch.collectors.receiver_settings import ReceiverSettings, socket_path
from flightwatch.collectors.redfish_settings import RedfishSettings
from flightwatch.collectors.settings import AgentSettings
from flightwatch.core.clock import SystemClock
from flightwatch.core.ed25519 import PUBLIC_KEY_BYTES
from flightwatch.core.errors import ConfigError, Refused
from flightwatch.core.vocabulary import ExitCode

if TYPE_CHECKING:
    from flightwatch.collectors.op_ring import OpRing
    from flightwatch.core.ed25519 import SigningKey
    from flightwatch.core.settings import Loaded

logger = logging.getLogger(__name__)

_M_ARENA_MAX = -8
_PR_SET_PDEATHSIG = 1

HELP = "Collect on this node and send to the bus until SIGTERM; `enroll` gives the node its key."
EPILOG = (
    "examples:\n  flightwatch agent --config /etc/flightwatch/flightwatch.toml\n"
    "  flightwatch agent --once --print\n"
    "  flightwatch agent enroll --data-dir .demo\n"
    "  flightwatch agent enroll --node node-17 --public-key HEX     (where the control database is)\n"
    "  flightwatch agent revoke --node node-17                      (likewise: its batches are refused from then on)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("verb", nargs="?", choices=("run", "enroll", "revoke"), default="run", help="default: run")
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="data folder of the agent or instance (default: flightwatch.data_dir)")
    parser.add_argument("--once", action="store_true", help="collect once; needs --print")
    parser.add_argument(
        "--print", dest="print_rows", action="store_true", help="print rows as JSON lines, send nothing"
    )
    parser.add_argument("--node", help="enroll, revoke: name of the node (default: flightwatch.node)")
    parser.add_argument("--parent", type=int, help="process id of the process that started this one: end with it")
    parser.add_argument(
        "--public-key", help="enroll: register this key, made by `enroll` on the node; revoke: only this key"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the verb."""
    if arguments.data_dir:
        os.environ["FLIGHTWATCH_FLIGHTWATCH_DATA_DIR"] = os.path.abspath(arguments.data_dir)
    settings = load_agent_settings(arguments.config)
    if arguments.verb == "revoke":
        from flightwatch.cli.agent_enroll import revoke

        return revoke(settings.section(CommonSettings), arguments.node, arguments.public_key, arguments.config)
    if arguments.verb == "enroll":
        from flightwatch.cli.agent_enroll import control_is_local, enroll, register_with

        common = settings.section(CommonSettings)
        register = register_with(arguments.config)
        return enroll(common, arguments.node, arguments.public_key, register, control_is_local(common))
    if arguments.once != arguments.print_rows:
        raise ConfigError("--once and --print are used together: collect once and print")
    common = settings.section(CommonSettings)
    from flightwatch.collectors.identity import checked_node_name

    node = checked_node_name(common.node_name, "flightwatch.node" if common.node else "the host name")
    control_keys(settings.section(AgentSettings).control_keys)
    if arguments.once:
        return _print_once(settings, common, node)
    if arguments.parent is not None:
        end_with(arguments.parent)
    return _run(settings, common, node)


def end_with(parent: int) -> None:
    """Let the kernel send this process SIGTERM when the process that started it ends, in whatever way.

    Raises
    ------
    Refused: that process has ended already, or did not start this one.
    """
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    except (OSError, AttributeError):
        logger.debug("this C library has no prctl")
    if os.getppid() != parent:
        raise Refused(f"process {parent} did not start this one, or has ended")


def receiver_settings(settings: Loaded, common: CommonSettings) -> ReceiverSettings:
    """Return the section `[receiver]` with the path of the socket that probes of this installation send to."""
    section = settings.section(ReceiverSettings)
    given = os.environ.get("FLIGHTWATCH_SOCKET", "")
    path = socket_path(section, os.path.abspath(common.data_dir), CommonSettings.data_dir, given)
    return dataclasses.replace(section, socket=path)


def op_ring(section: ReceiverSettings, folder: str) -> OpRing | None:
    """Return the ring of per-op detail in the agent's folder, None when it is turned off."""
    from flightwatch.collectors.op_ring import OpRing

    if section.ring_bytes == 0:
        return None
    return OpRing(os.path.join(folder, "op_ring"), section.ring_bytes, section.ring_seconds)


def state_dir(common: CommonSettings) -> str:
    """Return the folder of the agent's key and positions."""
    return os.path.join(common.data_dir, "agent")


def _print_once(settings: Loaded, common: CommonSettings, node: str) -> int:
    import json

    from flightwatch.collectors.registry import make_collectors
    from flightwatch.collectors.runner import Runner
    from flightwatch.core.clock import iso_utc

    # One call is all there is, so each source shows everything in it.
    agent = dataclasses.replace(settings.section(AgentSettings), link_interval_seconds=0.0)
    runner = Runner(
        make_collectors(environment_at(agent.root, agent, redfish=settings.section(RedfishSettings))),
        _NoSink(),
        SystemClock(),
        agent.stuck_after_seconds,
    )
    for row in runner.collect_once():
        values = {"cluster": common.cluster, "node": node, **row.values}
        ts = values.get("ts")
        values["ts"] = iso_utc(ts) if isinstance(ts, int) else None
        print(json.dumps({"table": row.table, "row": values}, ensure_ascii=False))
    for slot in runner.slots:
        if slot.error:
            print(f"flightwatch agent: {slot.name}: {slot.error}", file=sys.stderr)
    return ExitCode.DONE


class _NoSink:
    """Takes nothing: `collect_once` hands its rows to the caller."""

    def emit(self, rows: object) -> None:
        """Do nothing."""

    def flush(self, timeout_seconds: float) -> bool:
        """Return True: nothing waits."""
        return True


def _run(settings: Loaded, common: CommonSettings, node: str) -> int:
    from flightwatch.collectors.identity import load_identity
    from flightwatch.core.logs import configure

    configure(common.log_level, common.log_format)
    agent_settings = settings.section(AgentSettings)
    folder = state_dir(common)
    prepare_process(folder, agent_settings.open_files)
    identity = load_identity(folder)
    if identity is None:
        logger.info("this node has no key: batches are not signed (`flightwatch agent enroll` makes one)")
    environment = environment_at(agent_settings.root, agent_settings, folder, settings.section(RedfishSettings))
    environment.receiver = receiver_settings(settings, common)
    environment.op_ring = op_ring(environment.receiver, folder) if environment.live else None
    return run_agent(settings, common, node, identity, environment)


def run_agent(
    settings: Loaded, common: CommonSettings, node: str, identity: SigningKey | None, environment: Environment
) -> int:
    """Join collectors, sender and bus, and collect until SIGTERM or SIGINT.

    Returns
    -------
    ExitCode.DONE when everything collected was sent or spooled, else ExitCode.FAILED.

    Raises
    ------
    ConfigError: a folder or URL cannot be used. Refused: another agent uses the same data folder.
    """
    from flightwatch.cli.agent_parts import AgentParts
    from flightwatch.collectors.agent import Agent
    from flightwatch.pipeline.blobs import BlobSender
    from flightwatch.pipeline.bus.connect import open_bus
    from flightwatch.pipeline.bus.settings import BusSettings
    from flightwatch.pipeline.codec import encode
    from flightwatch.pipeline.commands import CommandReader
    from flightwatch.pipeline.sender import Sender
    from flightwatch.pipeline.spool import Spool, SpoolSettings

    spool_settings = settings.section(SpoolSettings)
    clock = SystemClock()
    spool = Spool(Path(spool_settings.folder or os.path.join(common.data_dir, "spool")), spool_settings)
    bus = open_bus(common.bus_url, settings.section(BusSettings), clock)
    pack = functools.partial(encode, sign=identity.sign if identity else None)
    sender = Sender(bus, spool, pack, node, common.cluster, clock)
    probe_socket = environment.receiver.socket
    parts = AgentParts(
        settings, common, state_dir(common), probe_socket, sender, BlobSender(sender, pack), clock, environment.live,
        environment.op_ring,
    )  # fmt: skip
    environment.run_watch = parts.hang.progress.see
    environment.block_times = parts.profiler.blocks if parts.profiler is not None else None
    keys = control_keys(environment.settings.control_keys)
    commands = CommandReader(bus, node, keys, clock, os.path.join(state_dir(common), "commands_seen")) if keys else None
    agent = Agent(environment, parts.sink, clock, sender.state, commands, parts.handlers, settle=settle_memory)
    when_asked_to_stop(agent.stop)
    settle_memory()
    sender.start()
    parts.start()
    logger.info("agent of node %s collects", node)
    kept = agent.run()
    parts.stop()
    sender.stop(environment.settings.stop_timeout_seconds)
    bus.close()
    logger.info("agent of node %s has ended", node)
    return ExitCode.DONE if kept else ExitCode.FAILED


def control_keys(texts: Sequence[str]) -> list[bytes]:
    """Return the keys in `agent.control_keys`. Raises ConfigError when one is not 64 hexadecimal digits."""
    try:
        keys = [bytes.fromhex(text) for text in texts]
    except ValueError:
        keys = [b""]
    if any(len(key) != PUBLIC_KEY_BYTES for key in keys):
        raise ConfigError("agent.control_keys: a public key is 64 hexadecimal digits")
    return keys


def settle_memory() -> None:
    """Give back what importing left behind, and keep the collector of garbage from looking at it again."""
    gc.collect()
    gc.freeze()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        logger.debug("this C library has no malloc_trim")


def prepare_process(folder: str, open_files: int) -> None:
    """Make the state folder, allow the descriptors that collectors keep open, and keep memory in one place."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot make the agent's folder: {error.strerror}; set flightwatch.data_dir"
        ) from error
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = open_files + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        # glibc gives each thread its own arena, which costs an agent megabytes that are never full.
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):
        logger.debug("this C library has no mallopt")

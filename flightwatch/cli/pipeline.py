"""`flightwatch pipeline`: ingest alone, for clusters; several processes share the work."""

from __future__ import annotations

import argparse
import logging
import threading
from contextlib import ExitStack
from pathlib import Path

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.profile_worker import profile_worker
from flightwatch.cli.sections import load_settings
from flightwatch.cli.stopping import when_asked_to_stop
from flightwatch.core.logs import configure
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.control.agents import AgentKeys
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.ingest.settings import IngestSettings
from flightwatch.pipeline.ingest.signatures import SignatureCheck
from flightwatch.pipeline.profiles.server_key import server_key
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import wait_until_migrated
from flightwatch.pipeline.store.settings import StoreSettings

HELP = "Store what is on the bus until stopped; several of these, on several machines, share the work."
EPILOG = "example:\n  flightwatch pipeline --config /etc/flightwatch/flightwatch.toml"

logger = logging.getLogger(__name__)

#: File in the data folder whose age tells whether this process stores what it reads.
ALIVE_NAME = "pipeline.alive"
ALIVE_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; what was read by then is stored before it ends."""
    settings = load_settings(arguments.config)
    common = settings.section(CommonSettings)
    configure(common.log_level, common.log_format)
    stop = threading.Event()
    when_asked_to_stop(stop.set)
    with ExitStack() as stack:
        ingest = _open(stack, settings, common, stop)
        if ingest is not None:
            print("READY", flush=True)
            alive = Path(common.data_dir) / ALIVE_NAME
            threading.Thread(target=_say_alive, args=(ingest, alive, stop), name="alive", daemon=True).start()
            stack.callback(alive.unlink, missing_ok=True)
            ingest.run(stop)
    return ExitCode.DONE


def _say_alive(ingest: Ingest, path: Path, stop: threading.Event) -> None:
    """Touch a file while rows are stored or none wait: a container's health check looks at its age."""
    while not stop.is_set():
        if ingest.metrics.snapshot().last_error is None:
            path.touch(mode=0o600)
        stop.wait(ALIVE_SECONDS)


def _open(stack: ExitStack, settings: Loaded, common: CommonSettings, stop: threading.Event) -> Ingest | None:
    ingest_settings = settings.section(IngestSettings)
    bus = open_bus(common.bus_url, settings.section(BusSettings))
    stack.callback(bus.close)
    control = open_control(common.control_url, settings.section(ControlSettings))
    stack.callback(control.close)
    store = open_store(common.store_url, settings.section(StoreSettings))
    stack.callback(store.close)
    if not wait_until_migrated(store, stop):
        return None
    verify = SignatureCheck(AgentKeys(control).valid, required=ingest_settings.require_signatures)
    key = server_key(Path(common.data_dir))
    logger.info("agents do this server's commands when agent.control_keys holds %s", key.public_key.hex())
    profiles = profile_worker(settings, common, key, bus, control, store, verify)
    profiles.start()
    stack.callback(profiles.stop, 10.0)
    return Ingest(bus, store, ingest_settings, cluster=common.cluster, node=common.node_name, verify=verify)

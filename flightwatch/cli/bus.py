"""`flightwatch bus setup`."""

from __future__ import annotations

import argparse
import sys

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.sections import load_settings
from flightwatch.core.vocabulary import ExitCode
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import TopicOutcome, setup_topics

HELP = "Create the topics of the bus with their sizes and retention; doing it again changes nothing."
EPILOG = "example:\n  flightwatch bus setup --config flightwatch.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("verb", choices=("setup",), help="setup: create topics, set retention")
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Create the topics and print them."""
    settings = load_settings(arguments.config)
    bus_settings = settings.section(BusSettings)
    bus = open_bus(settings.section(CommonSettings).bus_url, bus_settings)
    try:
        for outcome in setup_topics(bus, bus_settings):
            print(_line(outcome))
            if outcome.partitions != outcome.plan.partitions:
                print(
                    f"flightwatch bus: {outcome.plan.name} keeps its {outcome.partitions} partitions: another number"
                    f" ({outcome.plan.partitions} in the settings) would move nodes between partitions",
                    file=sys.stderr,
                )
    finally:
        bus.close()
    return ExitCode.DONE


def _line(outcome: TopicOutcome) -> str:
    size = outcome.plan.retention_bytes
    limit = "no size limit" if size is None else f"{size / 1e9:g} GB"
    state = "created" if outcome.created else "present"
    hours = outcome.plan.retention_ms / 3_600_000
    return f"{outcome.plan.name:26} {state}  {outcome.partitions:3} partitions  {hours:g} h  {limit}"

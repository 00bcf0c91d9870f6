"""`flightwatch config check|init`."""

from __future__ import annotations

import argparse

from flightwatch.cli.sections import all_sections, config_file
from flightwatch.core.settings import load, template
from flightwatch.core.vocabulary import ExitCode

HELP = "Check the configuration, or write a commented file with every key at its default."
EPILOG = "example:\n  flightwatch config init > flightwatch.toml\n  flightwatch config check --config flightwatch.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("verb", choices=("check", "init"), help="check: print every value and its origin; init: a file")
    parser.add_argument("--config", help="file to check (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Print the file or the values."""
    if arguments.verb == "init":
        print(template(all_sections()), end="")
        return ExitCode.DONE
    loaded = load(all_sections(), config_file(arguments.config))
    width = max(len(origin.path) for origin in loaded.origins)
    for origin in loaded.origins:
        value = ("(set)" if origin.value else "(not set)") if origin.secret else repr(origin.value)
        print(f"{origin.path:{width}} = {value}   # {origin.source}")
    return ExitCode.DONE

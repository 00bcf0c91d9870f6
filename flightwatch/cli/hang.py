"""`flightwatch hang`: who stopped a hung job, out of dumps and logs, or out of the running job itself."""

from __future__ import annotations

import argparse
import json
import os
import sys

from flightwatch.collectors.hang_inspection import HangInspection
from flightwatch.core.errors import ConfigError
from flightwatch.core.protocols import Note
from flightwatch.core.vocabulary import ExitCode
from flightwatch.detectors.hang import judge

HELP = "Say who stopped a hung job, from flight-recorder dumps, library and watchdog logs, RAS output and stacks."
EPILOG = (
    "Prints one JSON object. Exit code 4 when the evidence names nobody, 3 when a dump was damaged.\n"
    "--live asks the agents of a running job, twice 5 s apart, and judges what they send.\n\n"
    "examples:\n  flightwatch hang /tmp/nccl_traces/\n  flightwatch hang bug-report.tar.gz job.log\n"
    "  flightwatch hang --live --job llama"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="dumps, logs, folders or archives of them")
    parser.add_argument("--live", action="store_true", help="ask the agents of a running job instead of reading files")
    parser.add_argument("--job", help="--live: name of the job (default: the only one that runs)")
    parser.add_argument("--attempt", default="", help="--live: attempt of the job (default: the newest)")
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="--live: seconds to wait for evidence (default: 30)"
    )
    parser.add_argument("--config", help="--live: configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="--live: folder of the instance (default: flightwatch.data_dir)")


def run(arguments: argparse.Namespace) -> int:
    """Read or collect the evidence, judge, print the verdict."""
    if arguments.live:
        return _live(arguments)
    if not arguments.paths:
        raise ConfigError("name dumps, logs or a folder of them, or use --live for a job that runs")
    inspection = HangInspection()
    for item in inspection.collect(arguments.paths):
        if isinstance(item.what, Note) and item.what.level != "info":
            place = f"{item.what.where}: " if item.what.where else ""
            print(f"{item.source}: {place}{item.what.text}", file=sys.stderr)
    verdict = judge(inspection.evidence)
    print(json.dumps(verdict.as_dict(), ensure_ascii=False))
    code = inspection.exit_code
    if code == ExitCode.DONE and verdict.verdict == "undetermined":
        return ExitCode.UNRECOGNISED
    return code


def _live(arguments: argparse.Namespace) -> int:
    from flightwatch.cli.hang_live import live_verdict
    from flightwatch.cli.sections import load_settings
    from flightwatch.core.clock import SystemClock

    if arguments.paths:
        raise ConfigError("--live asks a running job: name no files with it")
    if arguments.data_dir:
        os.environ["FLIGHTWATCH_FLIGHTWATCH_DATA_DIR"] = os.path.abspath(arguments.data_dir)
    settings = load_settings(arguments.config)
    verdict = live_verdict(settings, SystemClock(), arguments.job, arguments.attempt, arguments.timeout)
    print(json.dumps(verdict.as_dict(), ensure_ascii=False))
    return ExitCode.UNRECOGNISED if verdict.verdict == "undetermined" else ExitCode.DONE

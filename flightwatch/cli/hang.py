"""`flightwatch hang`: who stopped a hung job, out of dumps and logs."""

from __future__ import annotations

import argparse
import json
import sys

from flightwatch.collectors.hang_inspection import HangInspection
from flightwatch.core.protocols import Note
from flightwatch.core.vocabulary import ExitCode
from flightwatch.detectors.hang import judge

HELP = "Say who stopped a hung job, from flight-recorder dumps, library and watchdog logs, RAS output and stacks."
EPILOG = (
    "Prints one JSON object. Exit code 4 when the evidence names nobody, 3 when a dump was damaged.\n\n"
    "examples:\n  flightwatch hang /tmp/nccl_traces/\n  flightwatch hang bug-report.tar.gz job.log"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="dumps, logs, folders or archives of them")


def run(arguments: argparse.Namespace) -> int:
    """Read the evidence, judge, print the verdict."""
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

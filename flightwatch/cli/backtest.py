"""`flightwatch backtest`: run the detectors over recorded tables."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from flightwatch.core.errors import BadRecord, ConfigError
from flightwatch.core.vocabulary import ExitCode
from flightwatch.detectors.contract import Detector, Frames
from flightwatch.detectors.registry import all_detectors
from flightwatch.pipeline.detection.files import read_table
from flightwatch.pipeline.detection.run import run_detectors

HELP = "Run the detectors over recorded tables, as live with the clock of the data; one finding a line."
EPILOG = """example:
  flightwatch backtest --table rank_steps=steps.parquet --table placements=placements.csv

Files are Parquet or CSV with the columns of the table; times are ISO-8601 UTC or epoch milliseconds, an empty
cell is unknown. Without rank_steps, it is derived from op_timings of level phase. Exit codes: 0 done, 2 usage,
3 malformed input (what could be read is still used), 4 no rows that a detector can read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME=FILE", help="a table and its file; repeat for more"
    )
    parser.add_argument(
        "--detector", action="append", default=[], metavar="NAME", help="run only this detector; repeat for more"
    )
    parser.add_argument("--explain", metavar="FINDING", help="print one finding by its id, indented, with its evidence")


def run(arguments: argparse.Namespace) -> int:
    """Read the tables, run the detectors, print the findings."""
    if not arguments.table:
        raise ConfigError("give at least one --table NAME=FILE")
    detectors = _chosen(arguments.detector)
    frames, malformed = _read(arguments.table)
    if all(frame.empty for frame in frames.values()):
        print("flightwatch backtest: the tables have no rows", file=sys.stderr)
        return ExitCode.MALFORMED if malformed else ExitCode.UNRECOGNISED
    outcome = run_detectors(detectors, frames)
    for name, reason in outcome.failures.items():
        print(f"flightwatch backtest: the detector {name} failed: {reason}", file=sys.stderr)
    for finding in outcome.findings:
        if arguments.explain is None:
            print(finding.to_json())
        elif finding.id == arguments.explain:
            print(json.dumps(json.loads(finding.to_json()), indent=2, ensure_ascii=False))
    if outcome.failures:
        return ExitCode.FAILED
    return ExitCode.MALFORMED if malformed else ExitCode.DONE


def _chosen(names: list[str]) -> list[Detector]:
    detectors = all_detectors()
    known = {detector.name for detector in detectors}
    for name in names:
        if name not in known:
            raise ConfigError(f"--detector {name}: there is no such detector; known: {', '.join(sorted(known))}")
    return [detector for detector in detectors if not names or detector.name in names]


def _read(words: list[str]) -> tuple[Frames, bool]:
    frames, malformed = {}, False
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not path:
            raise ConfigError(f"--table {word}: write it as NAME=FILE")
        if name in frames:
            raise ConfigError(f"--table {name}: given twice")
        try:
            table = read_table(name, Path(path))
        except BadRecord as error:
            print(f"flightwatch backtest: {error}", file=sys.stderr)
            malformed = True
            continue
        for sentence in (*table.problems, *table.remarks):
            print(f"flightwatch backtest: {sentence}", file=sys.stderr)
        malformed = malformed or bool(table.problems)
        frames[name] = table.frame
    return frames, malformed

"""`flightwatch backtest`: run the detectors over recorded tables or over a time range of the store."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from flightwatch.cli.backtest_compare import Version, compared, rendered, versions_of, with_thresholds
from flightwatch.cli.common_settings import CommonSettings, local_path, local_url
from flightwatch.cli.sections import load_settings
from flightwatch.core.clock import SystemClock, parse_iso_utc
from flightwatch.core.errors import BadRecord, ConfigError, Refused
from flightwatch.core.vocabulary import ExitCode
from flightwatch.detectors.autoencoder_model import load_model
from flightwatch.detectors.contract import Detector, Finding, Frames
from flightwatch.detectors.expectation import read_expectation
from flightwatch.detectors.joint import explain
from flightwatch.detectors.registry import all_detectors
from flightwatch.incidents.summary import summarise
from flightwatch.pipeline.detection.files import read_table
from flightwatch.pipeline.detection.run import run_detectors
from flightwatch.pipeline.detection.truth import Truth, grade, read_truth
from flightwatch.pipeline.detection.window import needed_tables

HELP = "Run the detectors over recorded tables or the store, as live with the clock of the data; one finding a line."
EPILOG = """examples:
  flightwatch backtest --table rank_steps=steps.parquet --table placements=placements.csv
  flightwatch backtest --store --from 2026-11-29T08:00Z --to 2026-11-29T12:00Z --truth known.csv
  flightwatch backtest --table rank_steps=steps.parquet --set fail_slow.shift=0.05
  flightwatch backtest --store --truth known.csv --compare eager=slow.z=5 --compare calm=slow.z=9,fail_slow.shift=0.1

Files are Parquet, CSV or JSON lines (also in gzip) with the columns of the table; times are ISO-8601 UTC or epoch
milliseconds, an empty cell is unknown. Without rank_steps, it is derived from op_timings of level phase. --store
reads the store that the settings name: servers, or an embedded store that no running instance holds; rows of the
whole range are in memory at once. --truth is a CSV with the columns kind, target and, where known, scope,
first_step or first_ts; a target is a node, a rank, NODE/DEVICE, or a name as in the column targets. The comparison
goes to standard error as one JSON line; a truth without rows grades a clean recording. --set changes a threshold
(`flightwatch detect list --format json` names them); --compare runs further sets of thresholds over the same rows
and prints one row per set instead of findings. --summary prints the incidents that the live engine would make of
the findings, as one JSON line each with --format json. --explain also names what a finding follows from and what
follows from it. Exit codes: 0 done, 2 usage, 3 malformed input (what could be read is still used), 4 no rows that a
detector can read."""
DAY_MS = 86_400_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME=FILE", help="a table and its file; repeat for more"
    )
    parser.add_argument("--store", action="store_true", help="read the store instead of files")
    parser.add_argument("--from", dest="since", metavar="TIME", help="with --store: begin (default: a day before --to)")
    parser.add_argument("--to", dest="until", metavar="TIME", help="with --store: end (default: now)")
    parser.add_argument(
        "--detector", action="append", default=[], metavar="NAME", help="run only this detector; repeat for more"
    )
    parser.add_argument("--truth", metavar="FILE", help="compare with what is known; precision, recall and F1")
    parser.add_argument(
        "--set", dest="thresholds", action="append", default=[], metavar="DETECTOR.NAME=NUMBER",
        help="another threshold; repeat for more",
    )  # fmt: skip
    parser.add_argument(
        "--compare", action="append", default=[], metavar="NAME=DETECTOR.NAME=NUMBER,...",
        help="print a table of this set of thresholds beside those in force; repeat for more",
    )  # fmt: skip
    parser.add_argument("--summary", action="store_true", help="print the incidents that the findings make instead")
    parser.add_argument("--format", choices=("text", "json"), default="text",
                        help="of --compare and --summary; default: text")  # fmt: skip
    parser.add_argument(
        "--expectation", metavar="FILE", help="JSON of what jobs should reach, see job_regression (default: [detect])"
    )
    parser.add_argument("--autoencoder", metavar="FILE", help="also run the autoencoder with this model file")
    parser.add_argument("--explain", metavar="FINDING", help="print one finding by its id, with its evidence and cause")
    parser.add_argument("--data-dir", help="with --store: data folder of a single-machine installation")
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Read the tables, run the detectors, print the findings."""
    if arguments.store == bool(arguments.table):
        raise ConfigError("give --table NAME=FILE, once or more, or --store")
    if not arguments.store and (arguments.since or arguments.until or arguments.data_dir):
        raise ConfigError("--from, --to and --data-dir go with --store")
    if sum(bool(one) for one in (arguments.compare, arguments.explain, arguments.summary)) > 1:
        raise ConfigError("--compare, --explain and --summary are questions of their own: ask one at a time")
    detectors = with_thresholds(_chosen(arguments), arguments.thresholds)
    versions = versions_of(detectors, arguments.compare)
    try:
        truths = None if arguments.truth is None else read_truth(Path(arguments.truth))
    except BadRecord as error:
        print(f"flightwatch backtest: {error}", file=sys.stderr)
        return ExitCode.MALFORMED
    frames, malformed = (
        (read_store(arguments, needed_tables(detectors)), False) if arguments.store else read_files(arguments.table)
    )
    if all(frame.empty for frame in frames.values()):
        what = "the store has no rows in this time" if arguments.store else "the tables have no rows"
        print(f"flightwatch backtest: {what}", file=sys.stderr)
        return ExitCode.MALFORMED if malformed else ExitCode.UNRECOGNISED
    if arguments.compare:
        failed = _compare(versions, frames, truths, arguments.format)
    else:
        summary = arguments.format if arguments.summary else None
        failed = _print(detectors, frames, arguments.explain, truths, summary)
    if failed:
        return ExitCode.FAILED
    return ExitCode.MALFORMED if malformed else ExitCode.DONE


def _print(
    detectors: list[Detector], frames: Frames, wanted: str | None, truths: list[Truth] | None, summary: str | None
) -> bool:
    """Print the findings or their incidents, and how they compare with the truth; say whether a detector failed."""
    outcome = run_detectors(detectors, frames)
    for name, reason in outcome.failures.items():
        print(f"flightwatch backtest: the detector {name} failed: {reason}", file=sys.stderr)
    if summary is not None:
        for incident in summarise(outcome.findings, frames):
            print(json.dumps(incident.as_json(), ensure_ascii=False) if summary == "json" else incident.as_text())
    for finding in outcome.findings:
        if wanted is None and summary is None:
            print(finding.to_json())
    if wanted is not None and not _explain(wanted, outcome.findings, frames):
        return True
    if truths is not None:
        print(json.dumps(grade(outcome.findings, truths), ensure_ascii=False), file=sys.stderr)
    return bool(outcome.failures)


def _explain(wanted: str, findings: Sequence[Finding], frames: Frames) -> bool:
    """Print every statement about one finding, with what it follows from and what follows from it; False: none."""
    statements = [one for one in findings if one.id == wanted]
    if not statements:
        print(f"flightwatch backtest: no finding has the id {wanted}", file=sys.stderr)
    causes = explain(findings, frames)
    for finding in statements:
        document = json.loads(finding.to_json())
        for cause in causes:
            if cause.root.id == wanted:
                document["explains"] = [
                    {"id": one.id, "summary": one.summary, "why": words} for one, words in cause.consequences
                ]
            for one, words in cause.consequences:
                if one.id == wanted:
                    document["follows_from"] = {"id": cause.root.id, "summary": cause.root.summary, "why": words}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    return bool(statements)


def _compare(versions: Sequence[Version], frames: Frames, truths: list[Truth] | None, form: str) -> bool:
    """Print one row per set of thresholds; say whether a detector failed."""
    rows, failures = compared(versions, frames, truths)
    for name, reason in failures.items():
        print(f"flightwatch backtest: {name} failed: {reason}", file=sys.stderr)
    for line in rendered(rows, form):
        print(line)
    return bool(failures)


def read_store(arguments: argparse.Namespace, needed: dict[str, set[str]]) -> Frames:
    """Read the time range from the store that the settings name.

    Raises
    ------
    ConfigError: a time is malformed. Refused: there is no store, another process holds it, or it is older than this
    program. TransientError: the store is away.
    """
    from flightwatch.pipeline.detection.window import read_window
    from flightwatch.pipeline.store.client import open_store
    from flightwatch.pipeline.store.migrate import check
    from flightwatch.pipeline.store.settings import StoreSettings

    until = _time("--to", arguments.until, SystemClock().now_ms())
    since = _time("--from", arguments.since, until - DAY_MS)
    if since >= until:
        raise ConfigError("--from must be before --to")
    settings = load_settings(arguments.config)
    url = settings.section(CommonSettings).store_url
    if arguments.data_dir:
        url = local_url("chdb", arguments.data_dir, "store")
    if url.startswith("chdb:") and not local_path(url).is_dir():
        raise Refused(f"there is no store at {local_path(url)}")
    store = open_store(url, settings.section(StoreSettings))
    try:
        if check(store):
            raise Refused("the store is older than this program: `flightwatch store migrate` brings it up to date")
        return read_window(store, needed, lambda table: since, until)
    finally:
        store.close()


def _time(option: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        return parse_iso_utc(text)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{option} {text}: write it as 2026-11-29T08:00Z or as epoch milliseconds") from error


def _chosen(arguments: argparse.Namespace) -> list[Detector]:
    names, expectation, model = arguments.detector, arguments.expectation, arguments.autoencoder
    detectors = all_detectors(
        read_expectation(Path(expectation)) if expectation is not None else None,
        load_model(Path(model)) if model is not None else None,
    )
    known = {detector.name for detector in detectors}
    for name in names:
        if name not in known:
            raise ConfigError(f"--detector {name}: there is no such detector; known: {', '.join(sorted(known))}")
    return [detector for detector in detectors if not names or detector.name in names]


def read_files(words: list[str]) -> tuple[Frames, bool]:
    """Read `NAME=FILE` words; say whether anything was malformed. Raises ConfigError."""
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

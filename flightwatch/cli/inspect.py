"""`flightwatch inspect PATH...`: rows, events and a summary of any recorded output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping

from flightwatch.collectors.capture_walk import Item
from flightwatch.collectors.inspect import Inspection
from flightwatch.core.catalogue import TABLES
from flightwatch.core.clock import iso_utc, parse_iso_utc
from flightwatch.core.errors import ConfigError
from flightwatch.core.protocols import Note, Row, Value

HELP = "Recognise captures, logs and bundles by content and print their rows, or a summary with incidents."
EPILOG = """\
output without --summary: one JSON line a row, {"source", "table", "row"}, or note, {"source", "note"}
exit codes: 0 done, 2 usage, 3 something recognised was malformed (the rest is printed), 4 nothing recognised

examples:
  flightwatch inspect bug-report.tar.gz --summary
  flightwatch inspect dmesg.txt --node gpu-17 --at 2026-04-22T21:30:00Z"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="file, folder or archive; - is standard input")
    parser.add_argument("--at", help="time of the captures where they carry none (ISO-8601, or epoch seconds)")
    parser.add_argument("--node", help="node name where the captures carry none")
    parser.add_argument("--summary", action="store_true", help="devices, incidents and what to do, instead of rows")
    parser.add_argument("--format", choices=("text", "json"), help="form of the summary (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Print lines or the summary; return the exit code."""
    inspection = Inspection(_at(arguments.at), arguments.node)
    items = inspection.run(arguments.paths)
    if arguments.summary:
        from flightwatch.cli.inspect_summary import render, summarise  # not needed to print rows

        summary = summarise(items)
        if arguments.format == "json":
            print(dump(summary.as_json()))
        else:
            print("\n".join(render(summary, inspection)))
    else:
        for item in items:
            print(line(item))
    for path in arguments.paths:
        if _is_empty_folder(path):
            print(f"flightwatch inspect: {path!r}: the folder holds no files", file=sys.stderr)
    for source in inspection.unrecognised if not inspection.recognised else ():
        why = "the file is empty" if source in inspection.empty else "not recognised as any supported capture"
        print(f"flightwatch inspect: {source!r}: {why}", file=sys.stderr)
    return inspection.exit_code


def _is_empty_folder(path: str) -> bool:
    return os.path.isdir(path) and not any(files for _, _, files in os.walk(path))


def _at(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_iso_utc(text)
    except (ValueError, OverflowError):
        raise ConfigError(f"--at {text}: not a time; write for example 2026-04-22T21:30:00Z") from None


def line(item: Item) -> str:
    """Render one item as a JSON line."""
    if isinstance(item.what, Note):
        note = {"level": item.what.level, "where": item.what.where, "text": item.what.text}
        return dump({"source": item.source, "note": note})
    return dump({"source": item.source, "table": item.what.table, "row": rendered(item.what)})


def rendered(row: Row) -> dict[str, object]:
    """Return a row's values with times as ISO-8601."""
    times = _TIMES.get(row.table, frozenset())
    return {name: _iso(value) if name in times else value for name, value in row.values.items()}


_TIMES: Mapping[str, frozenset[str]] = {
    name: frozenset(column.name for column in table.columns if column.type == "time") for name, table in TABLES.items()
}


def _iso(value: Value) -> Value:
    try:
        return iso_utc(value) if isinstance(value, int) else value
    except (ValueError, OverflowError, OSError):
        return None


def dump(value: object) -> str:
    """Render JSON in ASCII, so that control characters of a capture never reach a terminal.

    NaN and infinities, which are values of training scalars, are written as the words NaN and Infinity.
    """
    return json.dumps(value, ensure_ascii=True, separators=(", ", ": ")).replace("\x7f", "\\u007f")

"""`flightwatch inventory import|show|diff`: racks, slots, zones, switches and rails, with history."""

from __future__ import annotations

import argparse
import functools
import json
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.local_client import SOCKET_NAME, LocalClient, error_text
from flightwatch.cli.sections import all_sections, config_file
from flightwatch.core.clock import SystemClock, iso_utc, parse_iso_utc
from flightwatch.core.errors import ConfigError, FlightwatchError, Refused
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.settings import Loaded, load
from flightwatch.core.vocabulary import ExitCode

HELP = "Import what exists (racks, slots, zones, switches), show it as of any time, and what changed."
EPILOG = (
    "example:\n"
    "  flightwatch inventory import racks.csv topology.conf ibnetdiscover.out\n"
    "  flightwatch inventory show --node node07\n"
    "  flightwatch inventory diff --from 2026-11-01T00:00:00Z\n"
    "  flightwatch inventory diff racks.csv"
)
_SEND_SECONDS = 30.0
#: Tables that `import` sends. Readings of a plant come as CSV from people, like its racks.
_IMPORTED = ("inventory", "links", "facility_samples")
_SHOWN = ("node", "device", "hca", "port", "part", "model", "serial", "rack", "slot", "cooling_zone", "power_zone",
          "scale_up_domain", "leaf_switch", "rail", "plane")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    importing = verbs.add_parser("import", help="read files and send inventory, links and facility readings")
    importing.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="CSV (racks, plant), topology or fabric capture"
    )
    importing.add_argument("--at", help="time from which it holds (default: now)")
    importing.add_argument("--node", help="node of captures that do not name one")
    importing.add_argument("--dry-run", action="store_true", help="print the rows instead of sending them")
    showing = verbs.add_parser("show", help="print the inventory")
    showing.add_argument("--at", help="time (default: now)")
    showing.add_argument("--node", help="this node only")
    difference = verbs.add_parser("diff", help="print what changed between two times, or what a file would change")
    difference.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="files to compare with the inventory")
    difference.add_argument("--from", dest="start", help="earlier time")
    difference.add_argument("--to", dest="end", help="later time (default: now)")
    difference.add_argument("--node", help="node of captures that do not name one")
    for verb in (showing, difference):
        verb.add_argument("--format", choices=("text", "json"), default="text", help="json: one object a line")
    for verb in (importing, showing, difference):
        verb.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Do what the verb says."""
    settings = load(all_sections(), config_file(arguments.config))
    common = settings.section(CommonSettings)
    if arguments.verb == "import":
        return _import(arguments, settings, common)
    if arguments.verb == "show":
        rows = [row for row in _read(settings, common, _time(arguments.at)) if arguments.node in (None, row["node"])]
        _print_rows(rows, arguments.format)
        return ExitCode.DONE
    return _diff(arguments, settings, common)


def _diff(arguments: argparse.Namespace, settings: Loaded, common: CommonSettings) -> int:
    from flightwatch.pipeline.store.inventory_reads import changes

    code: int = ExitCode.DONE
    if arguments.paths:
        found, code = _parsed(arguments.paths, SystemClock().now_ms(), arguments.node)
        after = [{**row.values, "part": _part(row)} for row in found if row.table == "inventory"]
        before = _read(settings, common, SystemClock().now_ms())
    elif arguments.start:
        before = _read(settings, common, _time(arguments.start))
        after = _read(settings, common, _time(arguments.end))
    else:
        raise ConfigError("inventory diff needs --from TIME or files")
    for change in changes(before, after):
        print(json.dumps(change, ensure_ascii=False) if arguments.format == "json" else _sentence(change))
    return code


def _import(arguments: argparse.Namespace, settings: Loaded, common: CommonSettings) -> int:
    rows, code = _parsed(arguments.paths, _time(arguments.at), arguments.node)
    if arguments.dry_run:
        for row in rows:
            print(json.dumps({"table": row.table, "row": {**row.values, "ts": iso_utc(_ts(row))}}, ensure_ascii=False))
        return code
    if rows:
        _send(rows, settings, common)
        counts = {table: sum(row.table == table for row in rows) for table in _IMPORTED}
        plant = f" and {counts['facility_samples']} facility readings" if counts["facility_samples"] else ""
        print(f"sent {counts['inventory']} inventory rows and {counts['links']} links{plant}")
    return code


def _parsed(paths: Iterable[Path], at_ms: int, node: str | None) -> tuple[list[Row], int]:
    """Return the rows of files that are imported, with the exit code: 3 malformed, 4 nothing recognised."""
    rows: list[Row] = []
    malformed, recognised = False, False
    for path in paths:
        for item in _items(path, CaptureContext(str(path), at_ms, node)):
            if isinstance(item, Note):
                malformed |= item.level == "error"
                if item.level != "info":
                    print(f"flightwatch inventory: {path}: {item.where + ': ' if item.where else ''}{item.text}",
                          file=sys.stderr)  # fmt: skip
            elif item.table in _IMPORTED:
                if item.table == "inventory" and item.values.get("node") is None:
                    malformed = True
                    print(f"flightwatch inventory: {path}: a row names no node; give --node", file=sys.stderr)
                else:
                    rows.append(item)
            recognised = True
    if malformed:
        return rows, ExitCode.MALFORMED
    return rows, ExitCode.DONE if recognised else ExitCode.UNRECOGNISED


def _items(path: Path, context: CaptureContext) -> Iterator[Row | Note]:
    from flightwatch.collectors.captures.registry import parsers

    try:
        with open(path, "rb") as stream:
            head = stream.read(65_536)
            stream.seek(0)
            for parser in parsers():
                if parser.recognise(head):
                    yield from parser.parse(stream, context)
                    return
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    print(f"flightwatch inventory: {path}: not recognised as an inventory or a topology", file=sys.stderr)


def _send(rows: list[Row], settings: Loaded, common: CommonSettings) -> None:
    """Put rows on the bus and wait for the acknowledgement.

    Raises
    ------
    Refused: the bus did not take them in time; they were not imported.
    """
    from flightwatch.pipeline.bus.connect import open_bus
    from flightwatch.pipeline.bus.settings import BusSettings
    from flightwatch.pipeline.codec import encode
    from flightwatch.pipeline.sender import Sender
    from flightwatch.pipeline.spool import Spool, SpoolSettings

    clock = SystemClock()
    spool = Spool(Path(common.data_dir) / "inventory-spool", settings.section(SpoolSettings))
    bus = open_bus(common.bus_url, settings.section(BusSettings), clock)
    # A name of its own: an agent of this machine has the node's.
    sender = Sender(
        bus, spool, functools.partial(encode, sign=None), f"inventory.{socket.gethostname()}", common.cluster
    )
    sender.start()
    try:
        sender.emit(rows)
        sender.flush(_SEND_SECONDS)
        if sender.state().oldest_waiting_ms is not None:
            raise Refused(f"{common.bus_url} does not answer; the rows wait on disk for the next import")
    finally:
        sender.stop(1.0)
        bus.close()


def _read(settings: Loaded, common: CommonSettings, at_ms: int) -> list[dict[str, Any]]:
    """Return the inventory at a time: from the running instance of this machine, else from the store itself."""
    from flightwatch.pipeline.store.inventory_reads import inventory_sql

    embedded = common.store_url.startswith("chdb:")
    if embedded and (Path(common.data_dir) / SOCKET_NAME).exists():
        try:
            return _ask(common, inventory_sql(at_ms))
        except Refused:
            # The socket is left over: nothing runs, and the store is free to be opened.
            pass
    from flightwatch.pipeline.store.client import open_store
    from flightwatch.pipeline.store.settings import StoreSettings

    store = open_store(common.store_url, settings.section(StoreSettings))
    try:
        return store.rows(inventory_sql(at_ms, common.cluster), {"cluster": common.cluster})
    finally:
        store.close()


def _ask(common: CommonSettings, sql: str) -> list[dict[str, Any]]:
    body = json.dumps({"query": sql, "format": "json"}).encode()
    with LocalClient(common.data_dir).request("POST", "/sql", body) as response:
        content = response.read()
        if response.status != 200:
            raise FlightwatchError(error_text(content, response.status))
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def _time(text: str | None) -> int:
    if text is None:
        return SystemClock().now_ms()
    try:
        return parse_iso_utc(text)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{text!r} is not a time: write 2026-11-29T19:10:13Z or seconds since 1970") from error


def _ts(row: Row) -> int | None:
    ts = row.values.get("ts")
    return ts if isinstance(ts, int) else None


def _part(row: Row) -> str:
    attrs = row.values.get("attrs")
    part = attrs.get("part") if isinstance(attrs, dict) else None
    return f"{part} {row.values.get('slot') or ''}" if part else ""


def _print_rows(rows: list[dict[str, Any]], form: str) -> None:
    if form == "json":
        for row in rows:
            seen = row.pop("last_seen_ms", None)
            print(
                json.dumps({**row, "last_seen": iso_utc(int(seen)) if seen is not None else None}, ensure_ascii=False)
            )
        return
    columns = [
        column for column in _SHOWN if column == "node" or any(row.get(column) not in (None, "") for row in rows)
    ]
    cells = [["" if row.get(column) is None else str(row[column]) for column in columns] for row in rows]
    widths = [
        max(len(column), *(len(row[i]) for row in cells)) if cells else len(column) for i, column in enumerate(columns)
    ]
    for line in [columns, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _sentence(change: dict[str, Any]) -> str:
    where = " ".join(f"{key} {change[key]}" for key in ("node", "device", "hca", "port", "part") if key in change)
    if change["change"] == "added":
        return f"+ {where}: " + ", ".join(f"{name} {value}" for name, value in change["values"].items())
    return f"~ {where}: {change['column']} {change['before']} -> {change['after']}"

"""`flightwatch dead list|show|replay`: what could not be stored, and another try for it."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Callable
from typing import Any

from flightwatch.cli.common_settings import CommonSettings, local_url
from flightwatch.cli.sections import load_settings
from flightwatch.cli.sql import ask
from flightwatch.core.clock import SystemClock, iso_utc, parse_iso_utc
from flightwatch.core.errors import ConfigError, Refused
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.dead import WHOLE_MESSAGE, replay
from flightwatch.pipeline.store.letters import as_letter, letters_sql

HELP = "List messages and rows that could not be stored, show one, or send them through ingest once more."
EPILOG = (
    "example:\n"
    "  flightwatch dead list\n"
    "  flightwatch dead show flightwatch.rows.samples/2/51200/3\n"
    "  flightwatch dead replay --all        (after an upgrade; twice is once)"
)

Letter = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("verb", choices=("list", "show", "replay"), help="list them, show one, or try again")
    parser.add_argument("ids", nargs="*", metavar="ID", help="TOPIC/PARTITION/OFFSET/INDEX as `list` prints it")
    parser.add_argument("--all", action="store_true", help="list: also those replayed; replay: all that were not")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one object a line")
    parser.add_argument("--limit", type=int, default=1000, help="most letters to list or replay (default: 1000)")
    parser.add_argument("--data-dir", help="data folder of the instance (default: flightwatch.data_dir)")
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Do what the verb says."""
    settings = load_settings(arguments.config)
    common = settings.section(CommonSettings)

    def select(sql: str) -> list[Letter]:
        answer = ask(sql, "json", settings, arguments.data_dir)
        return [_letter(json.loads(line)) for line in answer.splitlines() if line.strip()]

    if arguments.verb == "list":
        _list(select(letters_sql(replayed=arguments.all, limit=arguments.limit)), arguments.format)
        return ExitCode.DONE
    if not arguments.ids and not (arguments.verb == "replay" and arguments.all):
        raise ConfigError(f"`flightwatch dead {arguments.verb}` needs an ID (see `flightwatch dead list`)")
    letters = _chosen(arguments, select)
    if arguments.verb == "show":
        for letter in letters:
            print(json.dumps(_readable(letter), ensure_ascii=False, indent=None if arguments.format == "json" else 2))
        return ExitCode.DONE
    return _replay(letters, settings, common, arguments.data_dir)


def _letter(row: dict[str, Any]) -> Letter:
    letter = as_letter(row)
    if isinstance(letter["ts"], str):
        letter["ts"] = parse_iso_utc(letter["ts"])
    return letter


def _chosen(arguments: argparse.Namespace, select: Callable[[str], list[Letter]]) -> list[Letter]:
    if not arguments.ids:
        return select(letters_sql(replayed=False, limit=arguments.limit))
    chosen = []
    for letter_id in arguments.ids:
        found = select(letters_sql(letter_id))
        if not found:
            raise Refused(f"there is no dead letter {letter_id}")
        chosen += found
    return chosen


def _list(letters: list[Letter], form: str) -> None:
    if not letters:
        print("no dead letters", file=sys.stderr)
    for letter in letters:
        if form == "json":
            shown = {name: value for name, value in letter.items() if name != "payload"}
            print(json.dumps(shown | {"ts": iso_utc(letter["ts"])}, ensure_ascii=False))
        else:
            state = "  (replayed)" if letter["replayed"] else ""
            print(
                f"{iso_utc(letter['ts'])}  {letter['id']}  {letter['node'] or '-'}  {_plain(letter['reason'])}{state}"
            )


def _plain(text: str) -> str:
    """Escape control characters: reasons quote what strangers sent."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _readable(letter: Letter) -> dict[str, Any]:
    content: Any = letter["payload"] or None
    if content and letter["index"] != WHOLE_MESSAGE:
        content = json.loads(content)
    elif content:
        content = {"base64": content, "bytes": len(base64.b64decode(content))}
    return {**letter, "ts": iso_utc(letter["ts"]), "payload": content}


def _replay(letters: list[Letter], settings: Loaded, common: CommonSettings, data_dir: str | None) -> int:
    url = local_url("sqlite", data_dir, "bus") if data_dir else common.bus_url
    bus = open_bus(url, settings.section(BusSettings))
    failed = rows = 0
    try:
        for letter in letters:
            try:
                rows += replay(bus, letter, SystemClock().now_ms())
            except Refused as error:
                failed += 1
                print(f"{letter['id']}: {error}")
    finally:
        bus.close()
    print(f"{len(letters) - failed} letters with {rows} rows sent to ingest again, {failed} could not be")
    return ExitCode.FAILED if failed else ExitCode.DONE

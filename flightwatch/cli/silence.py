"""`flightwatch silence`: what is kept quiet and until when; maintenance windows; ending them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from flightwatch.cli.api_client import add_where, client_of, escaped
from flightwatch.cli.output import add_format, fitted
from flightwatch.core.clock import SystemClock, iso_utc
from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import ExitCode

HELP = "Silences and maintenance windows of a running instance: list, add, end."
EPILOG = (
    "example:\n"
    "  flightwatch silence list\n"
    '  flightwatch silence add --match cooling_zone=z3 --hours 4 --reason "pump is being replaced"\n'
    "  flightwatch silence add --match 'node=gpu-04*' --hours 8 --reason firmware --maintenance\n"
    "  flightwatch silence end SILENCE"
)


_MOST_HOURS = 24 * 366


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    listed = verbs.add_parser("list", help="those that hold now, the one that ends first in front")
    listed.add_argument("--all", action="store_true", help="those that are over or begin later, too")
    added = verbs.add_parser("add", help="keep matching incidents quiet")
    added.add_argument("--match", action="append", required=True, metavar="FIELD=VALUE",
                       help="what to keep quiet; all must match, * stands for any characters")  # fmt: skip
    added.add_argument("--hours", type=float, required=True, help="for so long")
    added.add_argument("--reason", required=True, help="why")
    added.add_argument("--maintenance", action="store_true", help="nothing is done to matching nodes either")
    ended = verbs.add_parser("end", help="end one now: what it kept quiet and is still open is told")
    ended.add_argument("id", help="id of the silence")
    for one in (listed, added, ended):
        add_format(one)
        add_where(one)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb."""
    api = client_of(arguments)
    if arguments.verb == "list":
        found = api.get("/silences", active="false" if arguments.all else "true")["items"]
    elif arguments.verb == "end":
        found = [api.send("DELETE", f"/silences/{escaped(arguments.id)}")]
    else:
        body = {"matchers": _matchers(arguments.match), "reason": arguments.reason,
                "expires_at": ends_at(arguments.hours), "maintenance": arguments.maintenance}  # fmt: skip
        found = [api.send("POST", "/silences", body)]
    for silence in found:
        print(json.dumps(silence, ensure_ascii=False) if arguments.format == "json" else silence_line(silence))
    if not found and arguments.format == "text":
        print("no silence", file=sys.stderr)
    return ExitCode.DONE


def ends_at(hours: float) -> str | None:
    """Return when a silence of so many hours from now ends. Raises ConfigError where that is no time."""
    if not 0 < hours <= _MOST_HOURS:
        raise ConfigError(f"--hours {hours:g}: above 0, at most {_MOST_HOURS} (a year)")
    return iso_utc(SystemClock().now_ms() + round(hours * 3_600_000))


def silence_line(silence: dict[str, Any]) -> str:
    """Return a silence as a line for people."""
    what = ", ".join(f"{field}={value}" for field, value in silence["matchers"].items())
    kind = "maintenance of " if silence["kind"] == "maintenance" else ""
    until = f"until {silence['expires_at']}"
    if silence["ended_at"] is not None:
        until = f"ended {silence['ended_at']} by {silence['ended_by']}"
    return fitted(f"{silence['id']}  {kind}{what}  {until}  {silence['author']}: {silence['reason']}")


def _matchers(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name or not value:
            raise ConfigError(f"--match {pair!r}: write FIELD=VALUE, for example node=gpu-0417")
        if name in found:
            raise ConfigError(f"--match {name} is given twice")
        found[name] = value
    return found

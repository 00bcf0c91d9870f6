"""`flightwatch incident`: what is wrong on a running instance, what people do with it, and its report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flightwatch.cli.api_client import ApiClient, add_where, client_of, escaped
from flightwatch.cli.output import add_format, fitted
from flightwatch.cli.silence import ends_at, silence_line
from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import ExitCode

HELP = "Incidents of a running instance: what is wrong, and what you do with it."
EPILOG = (
    "example:\n"
    "  flightwatch incident list --severity P1 --severity P2\n"
    '  flightwatch incident ack INCIDENT --note "looking at it"\n'
    '  flightwatch incident silence INCIDENT --hours 4 --reason "cooling is being repaired"\n'
    "  flightwatch incident post-mortem INCIDENT --output report.md\n"
    "  FLIGHTWATCH_TOKEN_FILE=token flightwatch incident list --url https://flightwatch.example.com"
)
_ACTIVE = ("open", "acknowledged")
_STATES = ("active", *_ACTIVE, "resolved", "false_positive", "all")
_VERBS = (
    ("show", "one with its findings, notes and history"), ("ack", "say that you work on it"),
    ("resolve", "close it"), ("reopen", "open a closed one again"), ("note", "add a note"),
    ("assign", "give it to somebody"), ("silence", "keep it quiet for a time"),
    ("post-mortem", "its report, with the queries that bring the evidence back"),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    listed = verbs.add_parser("list", help="incidents that are not closed, the newest first")
    listed.add_argument("--state", action="append", choices=_STATES,
                        help="active (default): open or acknowledged; open: nobody has acknowledged it")  # fmt: skip
    listed.add_argument("--severity", action="append", choices=("P1", "P2", "P3", "P4"), help="default: all")
    listed.add_argument("--node", action="append", help="only of this node")
    listed.add_argument("--job", action="append", help="only of this job")
    listed.add_argument("--text", help="part of title, summary, node, job or id")
    listed.add_argument("--limit", type=int, default=50, help="at most so many (default: 50)")
    _finish(listed)
    for verb, text in _VERBS:
        one = verbs.add_parser(verb, help=text)
        one.add_argument("id", help="id of the incident")
        _add_own(one, verb)
        if verb == "post-mortem":
            add_format(one, ("md", "html", "json"), "of the report")
            add_where(one)
        else:
            _finish(one)


def _add_own(one: argparse.ArgumentParser, verb: str) -> None:
    """Declare what only this verb takes."""
    if verb in ("ack", "resolve", "reopen"):
        one.add_argument("--note", help="why, kept with the incident")
    if verb == "resolve":
        one.add_argument("--false-positive", action="store_true", help="nothing was wrong")
    if verb == "note":
        one.add_argument("text", help='the note; "-" reads it from standard input')
    if verb == "assign":
        one.add_argument("assignee", help='person; "-": nobody')
    if verb == "silence":
        one.add_argument("--hours", type=float, required=True, help="for so long")
        one.add_argument("--reason", required=True, help="why")
        one.add_argument("--whole-node", action="store_true", help="everything about its node, not only this one")
    if verb == "post-mortem":
        one.add_argument("--output", help="file to write (default: standard output)")


def _finish(parser: argparse.ArgumentParser) -> None:
    add_format(parser)
    add_where(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb."""
    api = client_of(arguments)
    if arguments.verb == "list":
        _list(api, arguments)
    elif arguments.verb == "show":
        _print(api.get(f"/incidents/{escaped(arguments.id)}"), arguments.format, _detail)
    elif arguments.verb == "silence":
        _print(_silence(api, arguments), arguments.format, silence_line)
    elif arguments.verb == "post-mortem":
        _report(api, arguments)
    else:
        _print(_change(api, arguments), arguments.format, _note_line if arguments.verb == "note" else _line)
    return ExitCode.DONE


def _states(wanted: Sequence[str] | None) -> list[str]:
    """Return the states of the API that are meant; empty: all."""
    chosen = wanted or ["active"]
    if "all" in chosen:
        return []
    return list(dict.fromkeys(one for name in chosen for one in (_ACTIVE if name == "active" else (name,))))


def _list(api: ApiClient, arguments: argparse.Namespace) -> None:
    left, cursor, shown = arguments.limit, None, 0
    if left < 1:
        raise ConfigError("--limit is at least 1")
    while left > 0:
        page = api.get(
            "/incidents", state=_states(arguments.state), severity=arguments.severity, node=arguments.node,
            job=arguments.job, text=arguments.text, cursor=cursor, limit=min(left, 200),
        )  # fmt: skip
        for incident in page["items"]:
            _print(incident, arguments.format, _line)
        shown += len(page["items"])
        left, cursor = left - len(page["items"]), page["next_cursor"]
        if cursor is None:
            break
    if not shown and arguments.format == "text":
        print("no incident", file=sys.stderr)


def _change(api: ApiClient, arguments: argparse.Namespace) -> Any:
    base = f"/incidents/{escaped(arguments.id)}"
    if arguments.verb == "note":
        text = sys.stdin.read().strip() if arguments.text == "-" else arguments.text
        return api.send("POST", f"{base}/notes", {"text": text})
    if arguments.verb == "assign":
        return api.send(
            "POST", f"{base}/assign", {"assignee": None if arguments.assignee == "-" else arguments.assignee}
        )
    body: dict[str, Any] = {"note": arguments.note}
    if arguments.verb == "resolve":
        body["state"] = "false_positive" if arguments.false_positive else "resolved"
    return api.send("POST", f"{base}/{'acknowledge' if arguments.verb == 'ack' else arguments.verb}", body)


def _silence(api: ApiClient, arguments: argparse.Namespace) -> Any:
    incident = api.get(f"/incidents/{escaped(arguments.id)}")["incident"]
    matchers = {"id": incident["id"]}
    if arguments.whole_node:
        if incident["node"] is None:
            raise ConfigError("--whole-node: this incident names no node")
        matchers = {"node": incident["node"]}
    if incident["tenant"] is not None:
        matchers["tenant"] = incident["tenant"]
    body = {"matchers": matchers, "reason": arguments.reason, "expires_at": ends_at(arguments.hours)}
    return api.send("POST", "/silences", body)


def _report(api: ApiClient, arguments: argparse.Namespace) -> None:
    text = api.get_text(f"/incidents/{escaped(arguments.id)}/post-mortem", format=arguments.format)
    if not arguments.output:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    try:
        Path(arguments.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {arguments.output}: {error.strerror}") from error
    print(f"wrote {arguments.output}", file=sys.stderr)


def _print(document: Any, form: str, line: Callable[[Any], str]) -> None:
    print(json.dumps(document, ensure_ascii=False) if form == "json" else line(document))


def _line(incident: dict[str, Any]) -> str:
    quiet = " (silenced)" if incident["silenced_by"] else " (explained by another)" if incident["inhibited_by"] else ""
    who = f", {incident['assignee']}" if incident["assignee"] else ""
    return fitted(
        f"{incident['id']}  {incident['severity']}  {incident['state']}{quiet}{who}  {incident['opened_at']}"
        f"  {incident['title']}"
    )


def _note_line(note: dict[str, Any]) -> str:
    return f"{note['at']}  {note['author']}: {note['text']}"


def _figure(value: object) -> object:
    return f"{value:.3g}" if isinstance(value, float) else value


def _detail(document: dict[str, Any]) -> str:
    incident = document["incident"]
    facts = [
        (name, incident[key])
        for name, key in (
            ("kind", "kind"), ("class", "class"), ("node", "node"), ("device", "device"), ("rank", "rank"),
            ("job", "job"), ("run", "run"), ("tenant", "tenant"), ("progress", "progress"),
            ("GPUs affected", "gpus_affected"), ("GPU hours lost", "lost_gpu_hours"), ("confidence", "confidence"),
            ("acknowledged by", "acknowledged_by"), ("closed at", "closed_at"),
        )
        if incident[key] is not None
    ]  # fmt: skip
    lines = [_line(incident), "", fitted(incident["summary"], ""), ""]
    lines += [fitted(f"  {name}: {_figure(value)}", "    ") for name, value in facts]
    findings = (f"  {one['severity']}  {one['state']}  {one['summary']}" for one in document["findings"])
    lines += ["", "findings:", *(fitted(one, "    ") for one in findings)]
    if document["notes"]:
        lines += ["", "notes:", *(fitted(f"  {_note_line(one)}", "    ") for one in document["notes"])]
    lines += ["", "history:", *(f"  {one['at']}  {one['actor']}  {one['event']}" for one in document["history"])]
    return "\n".join(lines)

"""`flightwatch action`: what was proposed and done to nodes; approve, reject, ask, stop everything."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from flightwatch.cli.api_client import ApiClient, add_where, client_of, escaped
from flightwatch.cli.output import add_format, fitted
from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import ExitCode

HELP = "Drains and other actions of a running instance: approve, reject, ask for one, stop them all."
EPILOG = (
    "example:\n"
    "  flightwatch action list --state proposed\n"
    "  flightwatch action approve ACTION\n"
    '  flightwatch action request return node17 --reason "GPU 3 replaced"\n'
    '  flightwatch action stop --reason "scheduler is being upgraded"'
)
_STATES = ("proposed", "approved", "running", "done", "failed", "undone", "rejected", "expired")
_KINDS = ("drain", "return", "drop_replica", "replace_rank")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    listed = verbs.add_parser("list", help="actions, the newest first")
    listed.add_argument("--state", action="append", choices=_STATES, help="default: all")
    listed.add_argument("--node", help="only on this node")
    listed.add_argument("--incident", help="only of this incident")
    listed.add_argument("--limit", type=int, default=50, help="at most so many (default: 50)")
    _finish(listed)
    for verb, text in (("show", "one with the figures behind it"), ("approve", "let the engine do it"),
                       ("reject", "say no to it")):  # fmt: skip
        one = verbs.add_parser(verb, help=text)
        one.add_argument("id", help="id of the action")
        if verb == "reject":
            one.add_argument("--reason", required=True, help="why not")
        _finish(one)
    asked = verbs.add_parser("request", help="ask for an action and approve it")
    asked.add_argument("kind", choices=_KINDS, help="what to do")
    asked.add_argument("node", help="node")
    asked.add_argument("--reason", required=True, help="why; schedulers keep it")
    asked.add_argument("--incident", help="incident it belongs to")
    asked.add_argument("--job", help="job, for drop_replica and replace_rank")
    asked.add_argument("--rank", type=int, help="rank, for drop_replica and replace_rank")
    _finish(asked)
    for verb, text in (("stop", "stop all actions at once"), ("allow", "allow actions again")):
        switch = verbs.add_parser(verb, help=text)
        switch.add_argument("--reason", required=True, help="why")
        _finish(switch)


def _finish(parser: argparse.ArgumentParser) -> None:
    add_format(parser)
    add_where(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb."""
    api, form = client_of(arguments), arguments.format
    if arguments.verb == "list":
        _list(api, arguments)
    elif arguments.verb == "show":
        _print(api.get(f"/actions/{escaped(arguments.id)}"), form)
    elif arguments.verb == "approve":
        _print(_approve(api, api.get(f"/actions/{escaped(arguments.id)}")), form)
    elif arguments.verb == "reject":
        _print(api.send("POST", f"/actions/{escaped(arguments.id)}/reject", {"reason": arguments.reason}), form)
    elif arguments.verb == "request":
        _print(_approve(api, api.send("POST", "/actions", _wish(arguments))), form)
    else:
        body = {"is_on": arguments.verb == "stop", "reason": arguments.reason}
        switch = api.send("PUT", "/actions/stop-switch", body)
        words = "all actions are stopped" if switch["is_on"] else "actions are allowed"
        print(json.dumps(switch, ensure_ascii=False) if form == "json" else fitted(f"{words} ({switch['reason']})"))
    return ExitCode.DONE


def _wish(arguments: argparse.Namespace) -> dict[str, Any]:
    wish = {name: getattr(arguments, name) for name in ("kind", "node", "reason", "incident", "job", "rank")}
    return {name: value for name, value in wish.items() if value is not None}


def _approve(api: ApiClient, action: dict[str, Any]) -> Any:
    """Ask for the approval of what was just shown, and use it: what changed in between is refused by the server."""
    revision = None
    if action["incident"] is not None:
        revision = api.get(f"/incidents/{escaped(action['incident'])}")["incident"]["revision"]
    path = f"/actions/{escaped(action['id'])}"
    given = api.send("POST", f"{path}/approval", {"incident_revision": revision})
    return api.send("POST", f"{path}/approve", {"approval": given["approval"]})


def _list(api: ApiClient, arguments: argparse.Namespace) -> None:
    if arguments.limit < 1:
        raise ConfigError("--limit is at least 1")
    left, cursor, shown = arguments.limit, None, 0
    while left > 0:
        page = api.get("/actions", state=arguments.state, node=arguments.node, incident=arguments.incident,
                       cursor=cursor, limit=min(left, 200))  # fmt: skip
        for action in page["items"]:
            _print(action, arguments.format)
        shown += len(page["items"])
        left, cursor = left - len(page["items"]), page["next_cursor"]
        if cursor is None:
            break
    if not shown and arguments.format == "text":
        print("no action", file=sys.stderr)


def _print(action: dict[str, Any], form: str) -> None:
    print(json.dumps(action, ensure_ascii=False) if form == "json" else _text(action))


def _text(action: dict[str, Any]) -> str:
    mode = action["mode"].replace("_", " ")
    lines = [f"{action['id']}  {action['state']}  {action['kind']} {action['node']} ({mode})  {action['updated_at']}"]
    lines.append(f"  why: {action['reason']}")
    cost = action["cost"]
    if cost.get("loss_gpu_hours") is not None:
        restart = cost.get("restart_gpu_hours")
        shown = "unknown" if restart is None else f"{restart:,.0f}"
        lines.append(f"  going on costs {cost['loss_gpu_hours']:,.0f} GPU-hours, a restart {shown}")
    for name, words in (("waits_for", "waits for"), ("outcome", "outcome"), ("undo", "undo")):
        if action[name]:
            lines.append(f"  {words}: {action[name]}")
    return "\n".join(fitted(line, "    ") for line in lines)

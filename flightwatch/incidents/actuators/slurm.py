"""Slurm: nodes are set to DRAIN (running jobs end in peace), never to DOWN (which kills them).

Through `scontrol` and `sinfo` of this machine, with argument lists, never a shell; or through slurmrestd.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from flightwatch.core.errors import FlightwatchError
from flightwatch.incidents.actuators.marks import is_node_name, is_ours, marked
from flightwatch.incidents.contract import ActionRequest, NodeView, Outcome
from flightwatch.incidents.outgoing import Outgoing

_TIMEOUT_SECONDS = 20.0
_OUTPUT_BYTES = 20_000_000
#: Parts of a node's state in which it takes no new work, and in which it is not there at all.
_OUT = {"drain", "drained", "draining", "fail", "failing", "maint"}
_GONE = {"down", "unknown", "not_responding", "invalid", "powered_down", "powering_down", "future", "error"}


class SlurmCommand:
    """Drains and returns nodes with `scontrol`.

    Parameters
    ----------
    scontrol, sinfo: programs. environment: further variables (SLURM_CONF); the rest is this process's.
    """

    name = "slurm"
    kinds: Sequence[str] = ("drain", "return")

    def __init__(
        self, scontrol: str = "scontrol", sinfo: str = "sinfo", environment: Mapping[str, str] | None = None
    ) -> None:
        self._scontrol, self._sinfo = scontrol, sinfo
        # Slurm colours and localises nothing, but its output formats can be changed by variables of the user.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SINFO_", "SQUEUE_"))}
        self._environment = kept | dict(environment or {})

    def apply(self, request: ActionRequest) -> Outcome:
        """See `contract.Actuator`."""
        if not is_node_name(request.node):
            return Outcome(False, False, f"{request.node!r} is not a node name")
        known = self.nodes()
        if known is None:
            return Outcome(False, False, "Slurm does not answer")
        view = known.get(request.node)
        if view is None:
            return Outcome(False, False, f"Slurm knows no node {request.node}")
        settled = _settled(request, view)
        if settled is not None:
            return settled
        if request.kind == "drain":
            arguments = ["State=DRAIN", f"Reason={marked(request)}"]
        else:
            arguments = ["State=RESUME"]
        code, text = self._run(self._scontrol, "update", f"NodeName={request.node}", *arguments)
        if code != 0:
            return Outcome(False, False, f"scontrol refused: {text[:300] or f'exit code {code}'}")
        return _done(request)

    def nodes(self) -> Mapping[str, NodeView] | None:
        """See `contract.Actuator`."""
        # %N name, %T long state, %E reason (last: it may hold the separator).
        code, text = self._run(self._sinfo, "--all", "-h", "-N", "-o", "%N|%T|%E")
        if code != 0:
            return None
        views: dict[str, NodeView] = {}
        for line in text.splitlines():
            name, _, rest = line.partition("|")
            state, _, reason = rest.partition("|")
            if is_node_name(name):
                views[name] = view_of(state, reason)
        return views

    def _run(self, *command: str) -> tuple[int, str]:
        try:
            ended = subprocess.run(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=_TIMEOUT_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return 127, f"{command[0]}: {type(error).__name__}"
        text = ended.stdout[:_OUTPUT_BYTES].decode("utf-8", "replace")
        return ended.returncode, text.strip() if ended.returncode else text


class SlurmRest:
    """Drains and returns nodes through slurmrestd.

    Parameters
    ----------
    url: base with the version of the API, for example https://slurm:6820/slurm/v0.0.41.
    user, token: a JWT of `scontrol token`.
    """

    name = "slurm"
    kinds: Sequence[str] = ("drain", "return")

    def __init__(self, outgoing: Outgoing, url: str, user: str, token: str) -> None:
        self._outgoing, self._url = outgoing, url.rstrip("/")
        self._headers = {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": token}

    def apply(self, request: ActionRequest) -> Outcome:
        """See `contract.Actuator`."""
        if not is_node_name(request.node):
            return Outcome(False, False, f"{request.node!r} is not a node name")
        known, problem = self._read(f"/node/{request.node}")
        if known is None:
            return Outcome(False, False, problem)
        view = known.get(request.node)
        if view is None:
            return Outcome(False, False, f"Slurm knows no node {request.node}")
        settled = _settled(request, view)
        if settled is not None:
            return settled
        if request.kind == "drain":
            body: dict[str, Any] = {"state": ["DRAIN"], "reason": marked(request)}
        else:
            body = {"state": ["RESUME"]}
        try:
            answer = self._outgoing.request(
                "POST", f"{self._url}/node/{request.node}", json=body, headers=self._headers
            )
        except FlightwatchError as error:
            return Outcome(False, False, f"Slurm does not answer: {error}")
        said = _errors(answer.json())
        if not answer.ok or said:
            return Outcome(False, False, f"Slurm refused: {said or f'HTTP {answer.status}'}")
        return _done(request)

    def nodes(self) -> Mapping[str, NodeView] | None:
        """See `contract.Actuator`."""
        return self._read("/nodes/")[0]

    def _read(self, path: str) -> tuple[dict[str, NodeView] | None, str]:
        try:
            answer = self._outgoing.request("GET", self._url + path, headers=self._headers)
        except FlightwatchError as error:
            return None, f"Slurm does not answer: {error}"
        document = answer.json()
        if answer.status == 404:
            return {}, ""
        if not answer.ok or answer.truncated or not isinstance(document, dict) or "nodes" not in document:
            return None, f"Slurm refused: {_errors(document) or f'HTTP {answer.status}'}"
        views = {}
        for node in document["nodes"]:
            states = node.get("state") or []
            text = "+".join(states) if isinstance(states, list) else str(states)
            views[str(node.get("name", ""))] = view_of(text, str(node.get("reason") or ""))
        return views, ""


def view_of(state: str, reason: str) -> NodeView:
    """Read a node's state: "idle", "drained*", "IDLE+DRAIN", "mixed~"."""
    # A star is a node that does not respond; other signs are about power and are fine.
    gone = "*" in state
    parts = set(re.split(r"[+\s]+", re.sub(r"[*~#%$@!^-]+$", "", state.strip().lower()).replace("*", "")))
    out = bool(parts & _OUT)
    reason = "" if reason.strip().lower() in ("none", "(null)") else reason.strip()
    usable = not out and not gone and not parts & _GONE and bool(state.strip())
    return NodeView(usable, out, out and is_ours(reason), reason)


def _settled(request: ActionRequest, view: NodeView) -> Outcome | None:
    """Return the outcome when there is nothing to do, or nothing we may do."""
    if request.kind == "drain" and view.ours and request.id in view.why:
        # This very action did it, and the process died before it could say so.
        return _done(request)
    if request.kind == "drain" and view.out:
        whose = "by Flightwatch" if view.ours else f"by others ({view.why or 'no reason given'})"
        return Outcome(True, False, f"{request.node} is out already, {whose}")
    if request.kind == "return" and not view.out:
        return Outcome(True, False, f"{request.node} is not drained")
    if request.kind == "return" and not view.ours:
        return Outcome(
            False, False, f"{request.node} was taken out by others ({view.why or 'no reason given'}): left as it is"
        )
    return None


def _done(request: ActionRequest) -> Outcome:
    if request.kind == "drain":
        return Outcome(
            True, True, f"{request.node} is draining in Slurm: running jobs end, no new ones start",
            f"flightwatch action request return {request.node} --reason TEXT",
        )  # fmt: skip
    return Outcome(True, True, f"{request.node} takes work again in Slurm")


def _errors(document: Any) -> str:
    if not isinstance(document, dict):
        return ""
    errors = document.get("errors")
    texts = [str(one.get("error") or one.get("description") or one) if isinstance(one, dict) else str(one)
             for one in errors] if isinstance(errors, list) else []  # fmt: skip
    return "; ".join(texts)[:300]

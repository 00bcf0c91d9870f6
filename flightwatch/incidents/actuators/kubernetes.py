"""Kubernetes: a node is cordoned and tainted NoSchedule, so running pods stay; never NoExecute, which evicts them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flightwatch.core.errors import FlightwatchError
from flightwatch.incidents.actuators.marks import is_node_name, is_ours, marked
from flightwatch.incidents.contract import ActionRequest, NodeView, Outcome
from flightwatch.incidents.outgoing import Answer, Outgoing

TAINT = "flightwatch.io/drained"
LABEL = "flightwatch.io/state"
ANNOTATION = "flightwatch.io/reason"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_PAGE = 500


class Kubernetes:
    """Cordons nodes through the API server.

    Changes carry the `resourceVersion` that was read, so a change by somebody else in between is a conflict and is
    read again once, never overwritten.

    Parameters
    ----------
    url: of the API server. token_file: read anew for each call, since projected tokens are renewed.
    tls: trusts the cluster's authority; None: as `outgoing`.
    """

    name = "kubernetes"
    kinds: Sequence[str] = ("drain", "return")

    def __init__(self, outgoing: Outgoing, url: str, token_file: Path, tls: ssl.SSLContext | None = None) -> None:
        self._outgoing, self._url, self._token_file, self._tls = outgoing, url.rstrip("/"), token_file, tls

    def apply(self, request: ActionRequest) -> Outcome:
        """See `contract.Actuator`."""
        if not is_node_name(request.node):
            return Outcome(False, False, f"{request.node!r} is not a node name")
        try:
            for _ in range(2):
                outcome = self._try(request)
                if outcome is not None:
                    return outcome
        except FlightwatchError as error:
            return Outcome(False, False, f"Kubernetes does not answer: {error}")
        return Outcome(False, False, f"{request.node} is being changed by somebody else: try again")

    def _try(self, request: ActionRequest) -> Outcome | None:
        """Read, decide, change; None after a conflict."""
        path = f"/api/v1/nodes/{request.node}"
        answer = self._call("GET", path)
        if answer.status == 404:
            return Outcome(False, False, f"Kubernetes knows no node {request.node}")
        node = answer.json()
        if not answer.ok or not isinstance(node, dict):
            return Outcome(False, False, f"Kubernetes refused: {_message(answer)}")
        view = view_of_node(node)
        if request.kind == "drain" and view.ours and request.id in view.why:
            # This very action did it, and the process died before it could say so.
            return _done(request)
        if request.kind == "drain" and view.out:
            whose = "by Flightwatch" if view.ours else "by others"
            return Outcome(True, False, f"{request.node} is cordoned already, {whose}")
        if request.kind == "return" and not view.out:
            return Outcome(True, False, f"{request.node} is not cordoned")
        if request.kind == "return" and not view.ours:
            return Outcome(False, False, f"{request.node} was cordoned by others: left as it is")
        changed = self._call("PATCH", path, _patch(node, request), "application/merge-patch+json")
        if changed.status == 409:
            return None
        if not changed.ok:
            return Outcome(False, False, f"Kubernetes refused: {_message(changed)}")
        return _done(request)

    def nodes(self) -> Mapping[str, NodeView] | None:
        """See `contract.Actuator`; reads the short table of nodes, and in full those that are ours."""
        ours = self._marked()
        views: dict[str, NodeView] = {}
        onward = ""
        while ours is not None:
            try:
                answer = self._call("GET", f"/api/v1/nodes?limit={_PAGE}&includeObject=None{onward}", accept=_TABLE)
            except FlightwatchError:
                return None
            document = answer.json()
            if not answer.ok or answer.truncated or not isinstance(document, dict):
                return None
            columns = [str(one.get("name", "")) for one in document.get("columnDefinitions", [])]
            for row in document.get("rows", []):
                cells = dict(zip(columns, row.get("cells", []), strict=False))
                words = set(str(cells.get("Status", "")).split(","))
                out = "SchedulingDisabled" in words
                name = str(cells.get("Name", ""))
                views[name] = NodeView("Ready" in words and not out, out, out and name in ours)
            token = document.get("metadata", {}).get("continue")
            if not token:
                return views
            onward = f"&continue={token}"
        return None

    def _marked(self) -> set[str] | None:
        try:
            answer = self._call(
                "GET", f"/api/v1/nodes?labelSelector={LABEL}%3Ddrained&includeObject=None", accept=_TABLE
            )
        except FlightwatchError:
            return None
        document = answer.json()
        if not answer.ok or answer.truncated or not isinstance(document, dict):
            return None
        columns = [str(one.get("name", "")) for one in document.get("columnDefinitions", [])]
        return {
            str(dict(zip(columns, row.get("cells", []), strict=False)).get("Name", ""))
            for row in document.get("rows", [])
        }

    def _call(
        self, method: str, path: str, body: Any = None, kind: str = "", accept: str = "application/json"
    ) -> Answer:
        try:
            token = self._token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise FlightwatchError(f"the token {self._token_file} cannot be read: {error.strerror}") from error
        headers = {"Authorization": f"Bearer {token}", "Accept": accept} | ({"Content-Type": kind} if kind else {})
        return self._outgoing.request(method, self._url + path, json=body, headers=headers, tls=self._tls)


def _done(request: ActionRequest) -> Outcome:
    if request.kind == "drain":
        undo = f"flightwatch action request return {request.node} --reason TEXT"
        return Outcome(
            True, True, f"{request.node} is cordoned in Kubernetes: running pods stay, no new ones come", undo
        )
    return Outcome(True, True, f"{request.node} takes pods again in Kubernetes")


def view_of_node(node: Mapping[str, Any]) -> NodeView:
    """Read a Node object."""
    spec, metadata = node.get("spec") or {}, node.get("metadata") or {}
    out = bool(spec.get("unschedulable"))
    reason = str((metadata.get("annotations") or {}).get(ANNOTATION, ""))
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return NodeView(ready and not out, out, out and is_ours(reason), reason)


def _patch(node: Mapping[str, Any], request: ActionRequest) -> dict[str, Any]:
    """Return a merge patch: lists are replaced whole, so other taints are carried along."""
    taints = [one for one in (node.get("spec") or {}).get("taints") or [] if one.get("key") != TAINT]
    version = (node.get("metadata") or {}).get("resourceVersion")
    if request.kind == "drain":
        taints.append({"key": TAINT, "value": "true", "effect": "NoSchedule"})
        marks: dict[str, Any] = {"labels": {LABEL: "drained"}, "annotations": {ANNOTATION: marked(request)}}
        return {"metadata": {"resourceVersion": version} | marks, "spec": {"unschedulable": True, "taints": taints}}
    # Kubernetes ties a taint of its own to `unschedulable` and takes it away by itself; it may be gone already.
    marks = {"labels": {LABEL: None}, "annotations": {ANNOTATION: None}}
    return {"metadata": {"resourceVersion": version} | marks, "spec": {"unschedulable": None, "taints": taints}}


def _message(answer: Answer) -> str:
    document = answer.json()
    said = document.get("message") if isinstance(document, dict) else None
    return str(said)[:300] if said else f"HTTP {answer.status}"

"""A signed request to a program of the operator's: drains, returns, and changes of live jobs."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence

from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError
from flightwatch.incidents.actuators.marks import is_node_name
from flightwatch.incidents.contract import ActionRequest, NodeView, Outcome
from flightwatch.incidents.outgoing import Outgoing

VERSION = 1


class WebhookActuator:
    """Posts what is to be done as JSON; 2xx means done, 409 done already, everything else not done.

    The body is signed: header `Flightwatch-Signature: t=SECONDS,v1=HEX`, HMAC-SHA256 over `SECONDS.BODY`.
    `Idempotency-Key` is the action's id: a repeat asks for nothing new.

    Parameters
    ----------
    name: for outcomes. kinds: what the receiver can do.
    """

    def __init__(
        self, outgoing: Outgoing, url: str, secret: str, kinds: Sequence[str], clock: Clock, name: str = "webhook"
    ) -> None:
        self.name = name
        self.kinds: Sequence[str] = tuple(kinds)
        self._outgoing, self._url, self._secret, self._clock = outgoing, url, secret, clock

    def apply(self, request: ActionRequest) -> Outcome:
        """See `contract.Actuator`."""
        if not is_node_name(request.node):
            return Outcome(False, False, f"{request.node!r} is not a node name")
        document = {
            "version": VERSION, "action": request.id, "kind": request.kind, "node": request.node,
            "job": request.job, "rank": request.rank, "incident": request.incident, "actor": request.actor,
            "reason": request.reason,
        }  # fmt: skip
        body = json.dumps(document, ensure_ascii=False, sort_keys=True).encode()
        seconds = str(self._clock.now_ms() // 1000)
        headers = {"Content-Type": "application/json", "Idempotency-Key": request.id}
        if self._secret:
            signature = hmac.new(self._secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
            headers["Flightwatch-Signature"] = f"t={seconds},v1={signature}"
        try:
            answer = self._outgoing.request("POST", self._url, content=body, headers=headers)
        except FlightwatchError as error:
            return Outcome(False, False, f"the action webhook did not answer: {error}")
        said = answer.text(200)
        if answer.status == 409:
            return Outcome(True, False, f"the action webhook says it is done already{': ' + said if said else ''}")
        if not answer.ok:
            return Outcome(
                False, False, f"the action webhook refused (HTTP {answer.status}){': ' + said if said else ''}"
            )
        undo = f"flightwatch action request return {request.node} --reason TEXT" if request.kind == "drain" else None
        return Outcome(True, True, f"the action webhook took it{': ' + said if said else ''}", undo)

    def nodes(self) -> Mapping[str, NodeView] | None:
        """Return None: a webhook says nothing about nodes."""
        return None

"""Asking agents for evidence: signed `collect_evidence` commands to the nodes of some ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence

from flightwatch.core.clock import Clock
from flightwatch.core.errors import Backpressure, BadRecord, TransientError
from flightwatch.core.protocols import Value
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.commands import CommandType, command_of, publish

#: Kinds of evidence that agents have: per-op detail of the node's ring, flight recorder and stacks.
KINDS = ("ring", "hang")
#: Ranks in one command; more of one node go into several.
RANKS_AT_ONCE = 64
PUBLISH_SECONDS = 10.0


class EvidenceRequester:
    """Sends commands; how often is the caller's to limit.

    Parameters
    ----------
    sign: Ed25519 signature by the control server's key (`server_key(...).sign`).
    """

    def __init__(self, bus: Bus, sign: Callable[[bytes], bytes], clock: Clock) -> None:
        self._bus = bus
        self._sign = sign
        self._clock = clock

    def request(
        self,
        *,
        job: str,
        run: str,
        ranks_by_node: Mapping[str, Sequence[int]],
        since_ms: int,
        until_ms: int,
        actor: str,
        what: Sequence[str] = ("ring",),
    ) -> list[str]:
        """Ask the nodes for evidence of their ranks; return the ids of the commands, in the order of nodes.

        An id follows from what is asked, so that asking twice (a second detection process, a retry after an
        error) makes agents do it once.

        Parameters
        ----------
        run: attempt, "" for every. since_ms, until_ms: window of op detail, at most an hour.
        actor: who asks, for the agents' logs: a person or "detector:<name>".

        Raises
        ------
        BadRecord: a kind that no agent has, or arguments out of their limits; nothing was sent to that node.
        TransientError: the bus did not take a command in time; ask again.
        """
        unknown = [kind for kind in what if kind not in KINDS]
        if unknown or not what:
            raise BadRecord(f"evidence {unknown!r}: agents have {', '.join(KINDS)}")
        sent: list[str] = []
        for node, ranks in sorted(ranks_by_node.items()):
            ordered = sorted(set(ranks))
            for first in range(0, len(ordered), RANKS_AT_ONCE):
                asked: dict[str, Value] = {
                    "what": ",".join(what), "run": run, "ranks": ordered[first : first + RANKS_AT_ONCE],
                    "since_ms": since_ms, "until_ms": until_ms,
                }  # fmt: skip
                sent.append(self._send(node, job, actor, asked))
        return sent

    def _send(self, node: str, job: str, actor: str, asked: dict[str, Value]) -> str:
        digest = hashlib.sha256(json.dumps([node, job, asked], sort_keys=True).encode()).hexdigest()
        name = f"e{digest[:20]}"
        arguments = {"request": name, **asked}
        command = command_of(
            name, CommandType.COLLECT_EVIDENCE, node, actor, self._clock.now_ms(), arguments, job
        )  # fmt: skip
        try:
            publish(self._bus, command, self._sign).result(PUBLISH_SECONDS)
        except (TimeoutError, Backpressure) as error:
            raise TransientError(f"the command for node {node} is not on the bus yet") from error
        return name

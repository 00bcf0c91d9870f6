"""From a request to signed commands for the nodes that have its ranks, and what happens when they are silent."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flightwatch.core.clock import Clock
from flightwatch.core.errors import Backpressure, FlightwatchError, TransientError
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.commands import CommandType, command_of, publish
from flightwatch.pipeline.profiles.records import BLOCKS, RANK_ENDED, Profiles, RankNews
from flightwatch.pipeline.profiles.settings import ProfilesSettings
from flightwatch.pipeline.store.client import Store

logger = logging.getLogger(__name__)

#: A rank that cannot be profiled (yet) may become able to so long after the request.
SETTLE_MS = 12_000
#: An agent answers a command at once when it has read it; it reads every 2 s.
ACKNOWLEDGE_MS = 30_000
#: On top of the request's own time: trace on the wire, op sums.
GRACE_MS = 300_000
#: Processes ask for a configuration every 5 s, agents for commands every 2 s; the rest is slack.
FAN_OUT_SECONDS = 10.0
#: Without step times the ranks take the next multiple of this step number.
UNKNOWN_ROUNDUP = 100
_PUBLISH_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Start:
    """When to record: `step` 0 means the next multiple of `roundup`."""

    step: int
    roundup: int


class Dispatcher:
    """Moves requests on; each step looks at all that have not ended."""

    def __init__(
        self,
        profiles: Profiles,
        bus: Bus,
        store: Store,
        sign: Callable[[bytes], bytes],
        settings: ProfilesSettings,
        clock: Clock,
    ) -> None:
        self._profiles = profiles
        self._bus = bus
        self._store = store
        self._sign = sign
        self._settings = settings
        self._clock = clock

    def step(self) -> None:
        """Send out, stop, and give up on what does not answer.

        Raises
        ------
        TransientError: bus or database is away; the next step does the same again.
        """
        for request in self._profiles.in_state("requested", "running", "stopping"):
            if request["state"] == "requested":
                self._send_out(request)
            elif request["state"] == "stopping":
                self._stop(request)
            else:
                self._give_up(request)

    def _send_out(self, request: Mapping[str, Any]) -> None:
        now_ms = self._profiles.now_ms()
        settled = now_ms - request["created_at_ms"] > SETTLE_MS
        targets = self._profiles.targets(request["job"], now_ms - round(self._settings.target_seconds * 1000))
        run = request["run"] or _newest_run(targets)
        by_rank = {one["rank"]: one for one in targets if one["run"] == run}
        wanted = [row["rank"] for row in request["ranks"] if row["state"] not in RANK_ENDED]
        late = now_ms - request["created_at_ms"] > request["max_seconds"] * 1000
        if late and wanted:
            reason = "its commands did not reach the bus in time"
            self._profiles.tell(request["id"], [RankNews(rank, "failed", reason) for rank in wanted])
            return
        blocks = bool(request["options"].get(BLOCKS))
        problems = {rank: _problem(rank, request["job"], by_rank.get(rank), bool(targets), blocks) for rank in wanted}
        if not settled and any(problems.values()):
            return
        failed = [RankNews(rank, "failed", reason) for rank, reason in problems.items() if reason]
        if failed:
            self._profiles.tell(request["id"], failed)
        ready = [rank for rank in wanted if not problems[rank]]
        if not ready:
            return
        # Before the commands: a node's answer is only believed about ranks it was asked for.
        nodes = {rank: str(by_rank[rank]["node"]) for rank in ready}
        self._profiles.tell(request["id"], [RankNews(rank, "requested", node=nodes[rank]) for rank in ready])
        start = start_of(self._steps(request["job"], run), self._clock.now_ms())
        ranks_of: dict[str, list[int]] = defaultdict(list)
        for rank, node in nodes.items():
            ranks_of[node].append(rank)
        for node, ranks in ranks_of.items():
            self._command(request, node, CommandType.PROFILE_START, _arguments(request, run, ranks, start))
        self._profiles.sent_out(request["id"], run, start.step)

    def _steps(self, job: str, run: str) -> Sequence[Mapping[str, Any]]:
        """Return newest step, its time and the step time of a job in the last minute; empty when there are none."""
        sql = (
            "SELECT max(step) AS newest_step, toUnixTimestamp64Milli(argMax(ts, step)) AS at_ms, "
            "quantile(0.5)(step_us) AS median_us FROM flightwatch.rank_steps "
            "WHERE job = {job:String} AND run = {run:String} AND ts > now64(3) - INTERVAL 60 SECOND "
            "HAVING count() > 1"
        )
        try:
            return self._store.rows(sql, {"job": job, "run": run})
        except FlightwatchError as error:
            logger.warning("the job's step is unknown: %s", error)
            return []

    def _stop(self, request: Mapping[str, Any]) -> None:
        waiting = [row for row in request["ranks"] if row["state"] not in RANK_ENDED]
        for node in sorted({row["node"] for row in waiting if row["node"]}):
            self._command(request, node, CommandType.PROFILE_STOP, {"request": request["id"]})
        self._profiles.tell(request["id"], [RankNews(row["rank"], "stopped", "stopped by request") for row in waiting])

    def _give_up(self, request: Mapping[str, Any]) -> None:
        now_ms = self._profiles.now_ms()
        late = now_ms - request["created_at_ms"] > request["max_seconds"] * 1000 + GRACE_MS
        news = []
        for row in request["ranks"]:
            if row["state"] == "requested" and now_ms - row["updated_at_ms"] > ACKNOWLEDGE_MS:
                reason = (
                    f"the agent of node {row['node']} did not acknowledge: it does not run, or agent.control_keys lacks"
                    " this server's key"
                )
                if request["options"].get(BLOCKS):
                    reason += ", or it is older than `flightwatch profile blocks`"
                news.append(RankNews(row["rank"], "failed", reason))
            elif late and row["state"] not in RANK_ENDED:
                what = "said that its times are sent" if request["options"].get(BLOCKS) else "sent the trace"
                reason = f"node {row['node']} has not {what} in time (last state: {row['state']})"
                news.append(RankNews(row["rank"], "failed", reason))
        if news:
            self._profiles.tell(request["id"], news)

    def _command(self, request: Mapping[str, Any], node: str, kind: CommandType, arguments: Mapping[str, Any]) -> None:
        # The same id again after a restart of this server: agents do a command once.
        name = f"{request['id']}-{kind.value}-{node}"[:256]
        command = command_of(name, kind, node, request["requested_by"], self._clock.now_ms(), arguments, request["job"])
        try:
            publish(self._bus, command, self._sign).result(_PUBLISH_SECONDS)
        except (TimeoutError, Backpressure) as error:
            raise TransientError(f"the command for node {node} is not on the bus yet") from error


def _newest_run(targets: Sequence[Mapping[str, Any]]) -> str:
    newest = max(targets, key=lambda one: (one["seen_at_ms"], one["run"]), default=None)
    return str(newest["run"]) if newest is not None else ""


def _problem(rank: int, job: str, target: Mapping[str, Any] | None, job_is_known: bool, blocks: bool) -> str:
    if target is None:
        if job_is_known:
            return f"no agent sees rank {rank} of job {job}"
        return f"no agent sees job {job}: it does not run, or only its launcher does"
    # What keeps a rank's profiler from recording does not keep its probe from timing blocks.
    return "" if blocks else str(target["problem"])


def start_of(steps: Sequence[Mapping[str, Any]], now_ms: int) -> Start:
    """Return when ranks should record so that all of them are ready by then.

    Parameters
    ----------
    steps: one row of newest_step, at_ms, median_us; or none, when the step is not known.
    """
    if not steps or not steps[0]["median_us"] or not steps[0]["at_ms"]:
        return Start(0, UNKNOWN_ROUNDUP)
    row = steps[0]
    step_s = max(1e-4, float(row["median_us"]) / 1e6)
    passed_s = min(60.0, max(0.0, (now_ms - row["at_ms"]) / 1000))
    first = int(row["newest_step"]) + math.ceil((passed_s + FAN_OUT_SECONDS) / step_s) + 2
    return Start(first, min(10**6, max(10, math.ceil(2 * FAN_OUT_SECONDS / step_s))))


def _arguments(request: Mapping[str, Any], run: str, ranks: Sequence[int], start: Start) -> dict[str, Any]:
    options = request["options"]
    return {
        "request": request["id"],
        "run": run,
        "ranks": list(ranks),
        "steps": request["steps"],
        "start_step": start.step,
        "wait_steps": start.roundup,
        "max_seconds": min(600, request["max_seconds"]),
        "max_bytes": min(100_000_000_000, request["max_bytes"] // len(request["ranks"])),
        **{name: bool(options.get(name)) for name in ("stacks", "shapes", "memory")},
        # Only where it is asked for: older agents refuse what they do not know.
        **({BLOCKS: True} if options.get(BLOCKS) else {}),
    }

"""`flightwatch hang --live`: asks the agents of a running job for evidence, waits for it, judges it."""

from __future__ import annotations

import getpass
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.sql import ask
from flightwatch.core.clock import Clock
from flightwatch.core.errors import ConfigError, Refused
from flightwatch.core.settings import Loaded
from flightwatch.detectors.hang_rows import Episode, episodes_of, verdict_of
from flightwatch.detectors.hang_verdict import HangVerdict
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.evidence_requests import EvidenceRequester
from flightwatch.pipeline.profiles.records import Profiles
from flightwatch.pipeline.profiles.server_key import KEY_FILE, server_key
from flightwatch.pipeline.profiles.settings import ProfilesSettings

#: Agents read commands every 2 s and capture twice, 5 s apart; the rest is the way into the store.
WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.5
_QUERIES = {
    "dumps": "toUnixTimestamp64Milli(ts) AS at_ms, cluster, node, capture_id, job, run, rank, status",
    "collectives": "toUnixTimestamp64Milli(ts) AS at_ms, capture_id, job, run, rank, process_group, seq, op, is_p2p,"
    " peer, bytes, dtype, state, retired, record_id, toUnixTimestamp64Milli(created_at) AS created_ms",
    "process_groups": "job, run, process_group, members",
    "events": "toUnixTimestamp64Milli(ts) AS at_ms, job, run, rank, code, message, attrs['capture_id'] AS"
    " `attrs.capture_id`, attrs['stack_digest'] AS `attrs.stack_digest`, attrs['waits_for'] AS `attrs.waits_for`",
}
_QUERY = "SELECT @columns FROM flightwatch.@table WHERE run = @run AND job = @job"
Targets = Mapping[str, Sequence[int]]


def live_verdict(settings: Loaded, clock: Clock, job: str | None, run: str, longest_seconds: float) -> HangVerdict:
    """Return who holds up a job that runs now.

    Parameters
    ----------
    job: None takes the only job that agents see.
    run: attempt, "" for the newest.

    Raises
    ------
    Refused: no agent sees the job, or no evidence came in time. ConfigError: several jobs run and none is named.
    """
    job, run, targets = _targets(settings, job, run)
    wanted = {rank for ranks in targets.values() for rank in ranks}
    asked_ms = clock.now_ms()
    captures = _request(settings, clock, job, run, targets, asked_ms)
    print(f"asked {len(targets)} nodes for evidence of {len(wanted)} ranks of job {job}", file=sys.stderr)
    deadline_s = clock.monotonic_s() + longest_seconds
    episode = _episode(settings, job, run, captures, asked_ms)
    while not _is_whole(episode, wanted) and clock.monotonic_s() < deadline_s:
        clock.sleep_s(_POLL_SECONDS)
        episode = _episode(settings, job, run, captures, asked_ms)
    if episode is None:
        raise Refused(
            f"no agent of job {job} sent evidence within {longest_seconds:.0f} s: it does not run, or its"
            " agent.control_keys lacks this server's key"
        )
    silent = sorted(wanted - episode.asked)
    if silent:
        print(f"flightwatch hang: no evidence came of ranks {silent}", file=sys.stderr)
    return verdict_of(episode)


def _targets(settings: Loaded, job: str | None, run: str) -> tuple[str, str, Targets]:
    """Return job, attempt and the ranks of each node, as agents tell them."""
    control = open_control(settings.section(CommonSettings).control_url, settings.section(ControlSettings))
    try:
        profiles = Profiles(control)
        since_ms = profiles.now_ms() - round(settings.section(ProfilesSettings).target_seconds * 1000)
        jobs = profiles.jobs(since_ms)
        if job is None and len(jobs) > 1:
            raise ConfigError(f"several jobs run, name one with --job: {', '.join(jobs)}")
        name = job or (jobs[0] if jobs else "")
        targets = profiles.targets(name, since_ms)
    finally:
        control.close()
    if not targets:
        what = f"job {name}" if name else "a training job"
        raise Refused(f"no agent sees {what}: it does not run, or runs where no agent does")
    newest = max(targets, key=lambda one: (one["seen_at_ms"], one["run"]))
    chosen = run or str(newest["run"])
    by_node: dict[str, list[int]] = defaultdict(list)
    for one in targets:
        if one["run"] == chosen:
            by_node[str(one["node"])].append(int(one["rank"]))
    return name, chosen, by_node


def _request(settings: Loaded, clock: Clock, job: str, run: str, targets: Targets, now_ms: int) -> set[str]:
    common = settings.section(CommonSettings)
    folder = Path(common.data_dir)
    if not (folder / KEY_FILE).exists():
        raise Refused(f"{folder} has no {KEY_FILE}: run this where the control server runs; `flightwatch up` makes it")
    bus = open_bus(common.bus_url, settings.section(BusSettings), clock)
    try:
        requester = EvidenceRequester(bus, server_key(folder).sign, clock)
        sent = requester.request(
            job=job, run=run, ranks_by_node=targets, since_ms=now_ms, until_ms=now_ms, actor=getpass.getuser(),
            what=("hang",),
        )  # fmt: skip
    finally:
        bus.close()
    return set(sent)


def _episode(settings: Loaded, job: str, run: str, captures: set[str], since_ms: int) -> Episode | None:
    """Return what has come so far of the collections asked for."""
    frames: dict[str, pd.DataFrame] = {}
    for table, columns in _QUERIES.items():
        # Columns and tables are constants, the names are quoted, and the query passes the guard as any other.
        text = _QUERY.replace("@columns", columns).replace("@table", table)
        if table != "process_groups":
            # A minute before, because nodes stamp their rows by their own clocks.
            text += f" AND ts > fromUnixTimestamp64Milli({since_ms - 60_000})"
        if table == "events":
            text += " AND code = 'hang:evidence'"
        text = text.replace("@run", _quoted(run)).replace("@job", _quoted(job))
        rows = [json.loads(line) for line in ask(text, "json", settings).splitlines() if line.strip()]
        frames[table] = pd.DataFrame(rows).rename(columns={"at_ms": "ts", "created_ms": "created_at"})
        if table == "dumps" and not rows:
            return None
    found = episodes_of(frames, captures)
    return found[-1] if found else None


def _is_whole(episode: Episode | None, wanted: set[int]) -> bool:
    return episode is not None and wanted <= episode.asked and wanted <= episode.seen_twice


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

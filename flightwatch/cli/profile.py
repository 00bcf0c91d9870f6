"""`flightwatch profile`: profiles of running jobs on demand, without a change of their code."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from flightwatch.cli.common_settings import CommonSettings, local_path
from flightwatch.cli.local_client import LOCK_NAME, LocalClient, error_text, lock_holder
from flightwatch.cli.sections import load_settings
from flightwatch.core.clock import Clock, SystemClock, iso_utc
from flightwatch.core.errors import ConfigError, FlightwatchError, Refused
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.profiles.limits import BLOCK_BYTES, MOST_RANKS, MOST_STEPS, check_block_size, check_size
from flightwatch.pipeline.profiles.object_store import checked_place, store_of
from flightwatch.pipeline.profiles.records import BLOCKS, KEPT, REQUEST_ENDED, Profiles, Wanted
from flightwatch.pipeline.profiles.settings import ProfilesSettings

HELP = "Record a few steps of a running job on chosen ranks, the same steps on all of them; no change of its code."
EPILOG = (
    "start: the job must have been started with the variables that `flightwatch doctor` prints; blocks: with the"
    " probe.\n\n"
    "examples:\n  flightwatch profile start --job llama --ranks 3,7-9 --steps 5 --wait\n"
    "  flightwatch profile start --job llama --role dp=0 --steps 3 --stacks\n"
    "  flightwatch profile start --job llama --suspects --wait\n"
    "  flightwatch profile blocks --job llama --ranks 3,7 --steps 20 --wait\n"
    "  flightwatch profile status p1a2b3c4d5e\n  flightwatch profile fetch p1a2b3c4d5e --out traces/\n"
    "  flightwatch profile stop p1a2b3c4d5e\n  flightwatch profile list"
)
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")
_ROLE = re.compile(r"(tp|cp|pp|vpp|dp|dp_replicate|dp_shard|ep|etp)=(\d{1,6})")
_ROLE_QUERY = (
    "SELECT DISTINCT rank FROM flightwatch.placements WHERE @role AND job = @job"
    " AND run = (SELECT argMax(run, ts) FROM flightwatch.placements WHERE job = @job)"
)
_POLL_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="start|blocks|stop|status|list|fetch")
    start = verbs.add_parser("start", help="ask for a profile; prints its id")
    _who_and_when(start)
    start.add_argument("--steps", type=int, default=5, help="steps to record (default: 5)")
    start.add_argument("--stacks", action="store_true", help="record Python stacks")
    start.add_argument("--shapes", action="store_true", help="record shapes of inputs")
    start.add_argument("--memory", action="store_true", help="record allocations")
    start.add_argument("--max-bytes", type=int, help="bytes of all traces (default: profiles.most_bytes)")
    start.add_argument("--to", default="", help="address below profiles.object_stores where the traces go (s3://...)")
    start.add_argument("--override-limits", action="store_true", help="more ranks, steps or bytes than [profiles] has")
    _common(start)
    text = "times of the model's blocks in every step for a while, by the probe and without a trace"
    blocks = verbs.add_parser("blocks", help=text, description=f"Send {text}, as rows of op_timings of level block.")
    _who_and_when(blocks)
    blocks.add_argument("--steps", type=int, default=20, help=f"steps, at most {MOST_STEPS} (default: 20)")
    _common(blocks)
    for verb, text in (("stop", "end a profile"), ("status", "show one profile"), ("fetch", "copy its traces")):
        one = verbs.add_parser(verb, help=text)
        one.add_argument("id", help="id of the profile")
        if verb == "fetch":
            one.add_argument("--out", default=".", help="folder to copy into (default: this one)")
        _common(one)
    _common(verbs.add_parser("list", help="show the newest profiles"))


def _who_and_when(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--attempt", default="", help="attempt of the job (default: the one that runs)")
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--ranks", help="ranks, for example 3,7-9")
    who.add_argument("--role", help="all ranks with a role, for example dp=0 or tp=1,pp=0")
    who.add_argument(
        "--suspects", action="store_true", help="the ranks that open slow findings name, and two role peers of each"
    )
    parser.add_argument("--reason", default="", help="why, kept with the request")
    parser.add_argument("--timeout", type=int, default=120, help="seconds until it fails (default: 120)")
    parser.add_argument(
        "--wait", action="store_true", help="wait until every rank has ended; exit code 1 when one failed"
    )


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="folder of the instance (default: flightwatch.data_dir)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb."""
    if arguments.data_dir:
        os.environ["FLIGHTWATCH_FLIGHTWATCH_DATA_DIR"] = str(Path(arguments.data_dir).absolute())
    settings = load_settings(arguments.config)
    control = _control(settings)
    try:
        profiles = Profiles(control)
        if arguments.verb in ("start", "blocks"):
            return _start(profiles, settings, arguments)
        if arguments.verb == "list":
            _print(profiles.newest(), arguments.format)
            return ExitCode.DONE
        if arguments.verb == "stop":
            profiles.stop(arguments.id)
        elif arguments.verb == "fetch":
            return _fetch(profiles.get(arguments.id), Path(arguments.out), settings.section(ProfilesSettings))
        _print([profiles.get(arguments.id)], arguments.format)
        return ExitCode.DONE
    finally:
        control.close()


def _control(settings: Loaded) -> Control:
    common = settings.section(CommonSettings)
    parts = urlsplit(common.control_url)
    if parts.scheme == "sqlite" and not Path("/" + unquote(parts.path).lstrip("/")).exists():
        raise Refused(f"nothing runs on {common.data_dir}: it has no control database; `flightwatch up` starts it")
    return open_control(common.control_url, settings.section(ControlSettings))


def _check_something_runs(common: CommonSettings) -> None:
    """Refuse when nothing on this machine would send a request out; a server elsewhere cannot be seen from here.

    Raises
    ------
    Refused: a single-machine installation of which neither `flightwatch up` nor `flightwatch pipeline` runs.
    """
    local = {"sqlite", "chdb"}
    if not {urlsplit(url).scheme for url in (common.bus_url, common.control_url, common.store_url)} <= local:
        return
    folder, store = Path(common.data_dir), local_path(common.store_url).resolve()
    # `up` holds the folder; `pipeline` alone holds only the embedded store.
    if not any(map(lock_holder, (folder / LOCK_NAME, store.with_name(f"{store.name}.lock")))):
        raise Refused(f"nothing runs on {folder}; `flightwatch up` starts it")


def ranks_of(text: str) -> list[int]:
    """Read "3,7-9". Raises ConfigError when it is not a list of ranks."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ConfigError(f"--ranks {text!r}: write ranks like 3,7-9")
        ranks.update(range(int(match[1]), min(int(match[2] or match[1]), int(match[1]) + MOST_RANKS) + 1))
    return sorted(ranks)


def _start(profiles: Profiles, settings: Loaded, arguments: argparse.Namespace) -> int:
    limits = settings.section(ProfilesSettings)
    ranks, why = _chosen(settings, arguments, limits)
    size = {"ranks": len(ranks), "steps": arguments.steps, "seconds": arguments.timeout}
    if arguments.verb == "blocks":
        max_bytes, to, options = BLOCK_BYTES, "", {BLOCKS: True}
        check_block_size(**size, max_bytes=max_bytes)
    else:
        max_bytes = limits.most_bytes if arguments.max_bytes is None else arguments.max_bytes
        override = arguments.override_limits
        check_size(limits, **size, max_bytes=max_bytes, override=override, hint="--override-limits allows more")
        to = checked_place(arguments.to, limits.object_stores) if arguments.to else ""
        options = {name: bool(getattr(arguments, name)) for name in ("stacks", "shapes", "memory")}
    _check_something_runs(settings.section(CommonSettings))
    wanted = Wanted(
        job=arguments.job, run=arguments.attempt, ranks=ranks, steps=arguments.steps, options=options,
        max_bytes=max_bytes, max_seconds=arguments.timeout, requested_by=getpass.getuser(),
        reason=arguments.reason or why, to=to,
    )  # fmt: skip
    name = profiles.create(wanted)
    if not arguments.wait:
        _print([profiles.get(name)], arguments.format)
        return ExitCode.DONE
    found = _wait(profiles, name, arguments.timeout, SystemClock())
    _print([found], arguments.format)
    return ExitCode.DONE if all(row["state"] == "done" for row in found["ranks"]) else ExitCode.FAILED


def _wait(profiles: Profiles, name: str, longest_seconds: float, clock: Clock) -> dict[str, Any]:
    deadline_s = clock.monotonic_s() + longest_seconds
    shown = ""
    while True:
        found = profiles.get(name)
        line = " ".join(f"rank {row['rank']} {row['state']}" for row in found["ranks"])
        if line != shown:
            print(f"{name}: {line}", file=sys.stderr)
            shown = line
        if found["state"] in REQUEST_ENDED and not _travels(found):
            return found
        left_seconds = deadline_s - clock.monotonic_s()
        if left_seconds <= 0:
            raise Refused(
                f"profile {name} has not ended after {longest_seconds:.0f} s ({found['state']}):"
                f" `flightwatch profile status {name}` shows what it waits for"
            )
        clock.sleep_s(min(_POLL_SECONDS, left_seconds))


def _travels(found: dict[str, Any]) -> bool:
    """Say whether traces of a request are still on their way into an object store."""
    to = found["options"].get("to", KEPT)
    return to != KEPT and any(row["artifact"] and not row["artifact"].startswith("s3://") for row in found["ranks"])


def _chosen(settings: Loaded, arguments: argparse.Namespace, limits: ProfilesSettings) -> tuple[list[int], str]:
    """Return the ranks asked for, and why where the findings of the job chose them."""
    if arguments.ranks:
        return ranks_of(arguments.ranks), ""
    if arguments.role:
        return _with_role(settings, arguments), ""
    from flightwatch.cli.profile_suspects import suspects_of

    every = arguments.verb == "blocks" or arguments.override_limits
    return suspects_of(settings, arguments.job, MOST_RANKS if every else limits.most_ranks)


def _with_role(settings: Loaded, arguments: argparse.Namespace) -> list[int]:
    """Return the ranks of the job's newest attempt that have a role, from the running instance."""
    parts = [part.strip() for part in arguments.role.split(",")]
    matches = [_ROLE.fullmatch(part) for part in parts]
    if not all(matches):
        raise ConfigError(f"--role {arguments.role!r}: write axes like dp=0 or tp=1,pp=0")
    wanted = " AND ".join(f"{match[1]} = {match[2]}" for match in matches if match)
    job = arguments.job.replace("\\", "\\\\").replace("'", "\\'")
    # Axes and numbers matched a pattern, the name is quoted, and the query passes the guard as any other.
    query = _ROLE_QUERY.replace("@role", wanted).replace("@job", f"'{job}'")
    body = json.dumps({"query": query, "format": "json"}).encode()
    with LocalClient(settings.section(CommonSettings).data_dir).request("POST", "/sql", body) as response:
        content = response.read()
        if response.status != 200:
            raise FlightwatchError(error_text(content, response.status))
    ranks = sorted(int(json.loads(line)["rank"]) for line in content.splitlines() if line.strip())
    if not ranks:
        raise Refused(f"no rank of job {arguments.job} is known to have {arguments.role}")
    return ranks


def _fetch(found: dict[str, Any], out: Path, settings: ProfilesSettings) -> int:
    traces = [row for row in found["ranks"] if row["artifact"] is not None]
    if not traces and found["options"].get(BLOCKS):
        raise Refused(f"{found['id']} is of times of blocks: rows of op_timings, no file; `flightwatch sql` reads them")
    if not traces:
        raise Refused(f"profile {found['id']} has no trace ({found['state']})")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for row in traces:
            target = out / f"{found['id']}-rank{row['rank']}.json.gz"
            if row["artifact"].startswith("s3://"):
                store = store_of(settings.s3_endpoint, settings.s3_region, SystemClock())
                store.get(row["artifact"], target, row["sha256"])
            else:
                shutil.copyfile(row["artifact"], target)
            print(target)
    except OSError as error:
        raise Refused(
            f"{error.filename}: {error.strerror}; traces lie on the machine that runs the control server"
        ) from error
    return ExitCode.DONE


def _print(found: list[dict[str, Any]], form: str) -> None:
    for request in found:
        document = {
            "id": request["id"],
            "kind": BLOCKS if request["options"].get(BLOCKS) else "trace",
            "job": request["job"],
            "run": request["run"] or None,
            "state": request["state"],
            "steps": request["steps"],
            "requested_by": request["requested_by"],
            "reason": request["reason"],
            "created_at": iso_utc(request["created_at_ms"]),
            "updated_at": iso_utc(request["updated_at_ms"]),
            "ranks": [
                {key: row[key] or None for key in ("node", "reason", "artifact", "sha256")}
                | {key: row[key] for key in ("rank", "state", "first_step", "bytes")}
                for row in request["ranks"]
            ],
        }
        if form == "json":
            print(json.dumps(document, ensure_ascii=False))
        else:
            _print_text(document)


def _print_text(document: dict[str, Any]) -> None:
    what = (
        f"{'times of blocks, ' if document['kind'] == 'blocks' else ''}{document['steps']} steps of {document['job']}"
    )
    print(f"{document['id']}  {document['state']}  {what}  {document['created_at']}  by {document['requested_by']}")
    for row in document["ranks"]:
        parts = [f"  rank {row['rank']}", row["state"], row["node"] or "", row["artifact"] or "", row["reason"] or ""]
        print("  ".join(part for part in parts if part))

"""The agent dies, comes back, or never was; the training goes on, and ends as it would have."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch


def test_an_agent_killed_and_restarted_gets_the_rest(jobs: Any, digests: Callable[[str], list[str]]) -> None:
    jobs.gather()
    process = jobs.start("ddp.py", "--steps", "150", "--slow-rank", "1", ranks=2)
    for _ in range(3000):
        jobs.gather()
        if len(jobs.of("rank_steps")) >= 10 or process.poll() is not None:
            break
        time.sleep(0.05)
    jobs.receiver.close()
    seen = max(row["step"] for row in jobs.of("rank_steps"))
    time.sleep(1.0)
    jobs.gather()  # Binds the socket again, as a restarted agent does.
    while process.poll() is None:
        jobs.gather()
        time.sleep(0.1)
    jobs.output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, jobs.output
    for _ in range(30):
        jobs.gather()
        time.sleep(0.1)
    for rank in (0, 1):
        steps = [row["step"] for row in jobs.steps(rank)]
        # What the dead agent had read and not handed over may be gone; everything since the restart is there.
        assert steps[-1] == 149
        assert [step for step in steps if step > seen + 60] == list(range(seen + 61, 150))
        assert len(steps) == len(set(steps))


def test_without_an_agent_the_job_is_the_same(jobs: Any, digests: Callable[[str], list[str]]) -> None:
    jobs.run("ddp.py", "--steps", "6", ranks=2, FLIGHTWATCH_SOCKET="/nonexistent/folder/probe.sock")
    absent = digests(jobs.output)
    jobs.run("ddp.py", "--steps", "6", ranks=2, FLIGHTWATCH="0")
    assert digests(jobs.output) == absent
    assert jobs.of("rank_steps") == []


def test_wrong_full_and_linked_sockets_change_nothing(jobs: Any) -> None:
    folder = Path(jobs.socket).parent
    (folder / "linked").symlink_to(folder)
    (folder / "file").write_text("no socket")
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.bind(str(folder / "deaf"))  # An agent that never reads.
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.bind(str(folder / "stream"))
    places = ("linked/probe.sock", "file", "deaf", "stream", "", "none/probe.sock", "x" * 200)
    names = [f"plain:{folder}/{place}" for place in places]
    jobs.run("scenarios.py", *names, FLIGHTWATCH="0")
    deaf.close()
    stream.close()
    lines = [line.split("|") for line in jobs.output.splitlines() if line.startswith("plain:")]
    assert len(lines) == 2 * len(places), jobs.output
    assert len({line[2] for line in lines}) == 1
    assert {line[3] for line in lines if line[1] == "1"} == {"0 "}
    assert {line.rsplit("|", 1)[1] for line in jobs.output.splitlines() if line.startswith("exit|")} == {"0"}
    # Through a link the agent is reached; the others lose their rows and nothing else.
    assert [row["step"] for row in jobs.steps(0)] == [0, 1, 2, 3, 4]
    assert (folder / "file").read_text() == "no socket"


def test_fsdp2_is_timed_and_unchanged(jobs: Any, digests: Callable[[str], list[str]]) -> None:
    jobs.run("fsdp.py", ranks=2)
    watched = digests(jobs.output)
    fast, slow = jobs.steps(0), jobs.steps(1)
    assert [row["step"] for row in fast] == list(range(10))
    assert {(row["rank"], row["dp_shard"]) for row in jobs.of("placements")} == {(0, 0), (1, 1)}
    later = range(2, 9)
    computed = [statistics.median(rank[step]["compute_us"] for step in later) for rank in (slow, fast)]
    assert computed[0] > 1.5 * computed[1]
    assert sum(slow[step]["wait_us"] for step in later) < sum(fast[step]["wait_us"] for step in later)
    ops = {row["op"] for row in jobs.of("op_timings", rank=0, kind="comm")}
    assert len(ops) >= 2  # all-gather and reduce-scatter
    jobs.run("fsdp.py", ranks=2, FLIGHTWATCH="0")
    assert digests(jobs.output) == watched

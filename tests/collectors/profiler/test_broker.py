from __future__ import annotations

import json
import select
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.profiler import folder
from flightwatch.collectors.profiler.broker import ProfilerBroker
from flightwatch.collectors.profiler.requests import ProfileRequest, Progress, RankJob, RankState, request_of
from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord, ConfigError
from flightwatch.core.protocols import Command
from tests.collectors.profiler.conftest import Client

RANK0 = {"RANK": "0", "WORLD_SIZE": "2", "FLIGHTWATCH_JOB": "llama", "KINETO_USE_DAEMON": "1"}


class Stage:
    """A broker whose thread is the test."""

    def __init__(self, where: str) -> None:
        self.clock = ManualClock()
        self.news: list[Progress] = []
        self.found: list[tuple[RankJob, str]] = []
        self.broker = ProfilerBroker(where, self.clock, lambda *one: self.found.append(one), self.news.append, "")
        folder.prepare(where)
        self.broker.bind()

    def answers_of(self, process: subprocess.Popen[str]) -> list[Any]:
        """Answer until the process has printed what it got."""
        assert process.stdout is not None
        while not select.select([process.stdout], [], [], 0)[0]:
            self.broker.step(0.02)
        answers: list[Any] = json.loads(process.stdout.readline())
        return answers

    def states(self) -> list[tuple[int, str]]:
        return [(one.rank, one.state.value) for one in self.news]


@pytest.fixture
def stage(short_folder: Path) -> Stage:
    return Stage(str(short_folder / "s"))


def request(**changes: Any) -> ProfileRequest:
    values: dict[str, Any] = {
        "id": "p1", "job": "llama", "run": "", "ranks": (0,), "steps": 3, "start_step": 500, "roundup": 40,
        "max_seconds": 90.0, "max_bytes": 10**9, "stacks": True, "shapes": False, "memory": False,
    }  # fmt: skip
    return ProfileRequest(**(values | changes))


def test_a_rank_gets_its_configuration_once(stage: Stage, client: Client) -> None:
    where = stage.broker.socket_dir
    stage.broker.begin(request())
    first = stage.answers_of(client(f"{where}/dynolog", KINETO_IPC_SOCKET_DIR=where, **RANK0))
    lines = dict(line.split("=", 1) for line in first[1].split())
    traces = Path(lines.pop("ACTIVITIES_LOG_FILE"))
    assert lines == {
        "PROFILE_START_ITERATION": "500",
        "PROFILE_START_ITERATION_ROUNDUP": "40",
        "ACTIVITIES_ITERATIONS": "3",
        "ACTIVITIES_WARMUP_ITERATIONS": "1",
        "PYTHON_STACK_TRACE": "true",
    }
    assert traces.parent.parent == Path(where) / "traces"
    assert traces.parent.stat().st_mode & 0o777 == 0o700
    assert stage.states() == [(0, "waiting"), (0, "armed")]
    again = stage.answers_of(client(f"{where}/dynolog", KINETO_IPC_SOCKET_DIR=where, **RANK0))
    assert again[1] == ""


@pytest.mark.parametrize("given", ["{dir}/", "relative", "{dir}/../s", "/elsewhere", None])
def test_a_process_with_another_folder_is_never_answered(stage: Stage, client: Client, given: str | None) -> None:
    where = stage.broker.socket_dir
    stage.broker.begin(request())
    words = {} if given is None else {"KINETO_IPC_SOCKET_DIR": given.format(dir=where)}
    assert stage.answers_of(client(f"{where}/dynolog", **RANK0, **words)) == [None, None]
    assert stage.states() == [(0, "waiting")]


def test_launchers_and_workers_of_a_rank_get_nothing(stage: Stage, client: Client) -> None:
    where = stage.broker.socket_dir
    stage.broker.begin(request())
    launcher = {key: value for key, value in RANK0.items() if key != "RANK"}
    assert stage.answers_of(client(f"{where}/dynolog", KINETO_IPC_SOCKET_DIR=where, **launcher))[1] == ""
    assert stage.answers_of(client(f"{where}/dynolog", "child", KINETO_IPC_SOCKET_DIR=where, **RANK0))[1] == ""
    assert stage.states() == [(0, "waiting")]


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"KINETO_USE_DAEMON": "0"}, "KINETO_USE_DAEMON is not set"),
        ({"KINETO_IPC_SOCKET_DIR": "/elsewhere"}, "differs from the agent's"),
        ({}, "has not asked"),
        ({"RANK": "7"}, "rank 0 does not run here"),
        ({"FLIGHTWATCH_JOB": "other"}, "no process of job llama runs here"),
    ],
)
def test_why_a_rank_does_not_ask(stage: Stage, client: Client, environment: dict[str, str], reason: str) -> None:
    # It talks to nobody: only its environment counts here.
    process = client(str(Path(stage.broker.socket_dir) / "none"), "stay", **(RANK0 | environment))
    while not Path(f"/proc/{process.pid}/environ").read_bytes():
        assert process.poll() is None  # the kernel is still putting the program in place
    stage.broker.begin(request())
    stage.clock.advance(16)
    stage.broker.step(0.0)
    assert process.poll() is None or reason.startswith("no process")
    assert stage.news[-1].state is RankState.FAILED
    assert reason in stage.news[-1].reason


def test_nonsense_and_floods_do_not_disturb(stage: Stage, client: Client) -> None:
    where = stage.broker.socket_dir
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.bind(f"{where}/stranger")
        for size in (0, 1, 39, 40, 4000):
            stranger.sendto(b"\xff" * size, f"{where}/dynolog")
            stage.broker.step(0.0)
    stage.clock.advance(1.0)
    assert stage.answers_of(client(f"{where}/dynolog", KINETO_IPC_SOCKET_DIR=where, **RANK0))[1] == ""


def test_a_second_profile_of_a_busy_rank_is_refused_and_the_first_can_be_stopped(stage: Stage) -> None:
    stage.broker.begin(request())
    stage.broker.begin(request(id="p2"))
    assert stage.news[-1].reason == "another profile of this rank is running"
    stage.broker.cancel("p1")
    assert (stage.news[-1].request, stage.news[-1].state) == ("p1", RankState.STOPPED)
    stage.broker.begin(request(id="p3"))
    assert (stage.news[-1].request, stage.news[-1].state) == ("p3", RankState.WAITING)


def test_without_a_trace_it_is_asked_again_and_then_given_up(stage: Stage, client: Client) -> None:
    where = stage.broker.socket_dir
    stage.broker.begin(request())
    process = client(f"{where}/dynolog", "stay", KINETO_IPC_SOCKET_DIR=where, **RANK0)
    assert stage.answers_of(process)[1] != ""
    stage.clock.advance(31)
    stage.broker.step(0.0)
    again = client(f"{where}/dynolog", "stay", KINETO_IPC_SOCKET_DIR=where, **RANK0)
    # The start is over by then: the next multiple of the round-up is taken.
    assert "PROFILE_START_ITERATION=2\n" in stage.answers_of(again)[1]
    assert "asked again" in stage.news[-1].reason
    stage.clock.advance(60)
    stage.broker.step(0.0)
    assert "a profiler of the job's own is active" in stage.news[-1].reason


def test_a_finished_trace_is_found(stage: Stage, client: Client) -> None:
    where = stage.broker.socket_dir
    stage.broker.begin(request())
    process = client(f"{where}/dynolog", "stay", KINETO_IPC_SOCKET_DIR=where, **RANK0)
    path = Path(stage.answers_of(process)[1].split("\n", 1)[0].split("=")[1])
    path.with_name(f"{path.stem}_123.json.tmp").write_text("half")
    stage.broker.step(0.0)
    assert stage.found == []
    path.with_name(f"{path.stem}_123.json").write_text("{}")
    stage.broker.step(0.0)
    job, name = stage.found[0]
    assert name == f"{path.stem}_123.json"
    stage.broker.finish(job, Progress("p1", 0, RankState.DONE))
    assert not path.parent.exists()


def test_another_daemon_is_left_alone(short_folder: Path) -> None:
    first = Stage(str(short_folder / "s"))
    second = Stage(str(short_folder / "s"))
    assert second.broker.yielded
    assert not first.broker.yielded
    first.broker.stop()
    second.broker.stop()


@pytest.mark.parametrize(
    ("path", "word"),
    [("relative", "absolute"), ("/tmp/", "absolute"), ("/tmp/a/../b", "absolute"), ("/tmp/" + "x" * 60, "54")],
)
def test_folders_that_jobs_could_not_use(path: str, word: str) -> None:
    assert word in folder.problem_of(path)


def test_a_folder_behind_a_link_or_of_another_kind_is_refused(short_folder: Path) -> None:
    (short_folder / "real").mkdir()
    (short_folder / "link").symlink_to(short_folder / "real")
    with pytest.raises(ConfigError, match="symbolic link"):
        folder.prepare(str(short_folder / "link"))
    (short_folder / "file").write_text("")
    with pytest.raises(ConfigError):
        folder.prepare(str(short_folder / "file"))


def test_sockets_of_clients_that_ended_are_removed(short_folder: Path) -> None:
    for name in ("dynoconfigclient-gone", "dynoconfigclient-here", "other"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
            bound.bind(str(short_folder / name))
            if name.endswith("here"):
                folder.sweep(str(short_folder))
    # "here" was open while the folder was swept, "other" is nobody's business.
    assert sorted(path.name for path in short_folder.iterdir()) == ["dynoconfigclient-here", "other"]


def command(**arguments: Any) -> Command:
    return Command("c1", "profile_start", "n", "llama", "me", 0, 1, arguments)


def test_a_request_is_read_from_a_command() -> None:
    found = request_of(command(request="p1", ranks=[3, 1, 3], steps=5, stacks=True, max_bytes=7))
    assert (found.ranks, found.steps, found.stacks, found.max_bytes, found.start_step) == ((1, 3), 5, True, 7, 0)
    for name in ("../p1", "", "a b"):
        with pytest.raises(BadRecord, match="not the id"):
            request_of(command(request=name, ranks=[0], steps=1))
    with pytest.raises(BadRecord, match="no rank"):
        request_of(command(request="p1", ranks=[], steps=1))

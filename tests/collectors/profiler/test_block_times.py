"""Times of blocks on demand, agent's side and probe's side against each other, without torch."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.profiler.block_times import NOT_TAKEN, OLDER, UNHEARD, BlockTimes
from flightwatch.collectors.profiler.requests import ProfileRequest, Progress, RankState
from flightwatch.collectors.training.asked import MOST_STEPS, Asked
from flightwatch.core.clock import ManualClock

REQUEST = ProfileRequest("p1", "j", "", (0,), 3, 0, 50, 60.0, 6000, False, False, False, blocks=True)


class Probe:
    """What a probe is to its `Asked`: a number of the running step, blocks, and a queue."""

    def __init__(self) -> None:
        self.off, self.blocks, self.number = False, 4, 10
        self.wire = self
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def put(self, row: tuple[str, dict[str, Any]]) -> None:
        self.sent.append(row)

    def next_number(self) -> int:
        return self.number


class Stage:
    """One rank and its agent; `exchange` is what both do twice a second."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "probe.sock"
        self.socket.touch()
        self.folder = folder / "probe.sock.requests"
        # The file says until when it counts, and the probe reads the machine's clock.
        self.clock = ManualClock(4_000_000_000_000)
        self.news: list[Progress] = []
        self.agent = BlockTimes(str(self.socket), self.clock, self.news.append)
        self.probe = Probe()
        self.asked = Asked(self.probe, str(self.socket))  # type: ignore[arg-type]

    def listen(self, run: str = "0") -> None:
        self.agent.hear("j", run, 0)
        self.agent.listens("j", run, 0, {"token": self.asked.token})

    def exchange(self) -> None:
        self.asked.look()
        for kind, values in self.probe.sent:
            assert kind == "asked"
            self.agent.answer("j", "0", 0, values)
        self.probe.sent.clear()

    def step(self, rows: int) -> None:
        if self.asked.covers(self.probe.number):
            self.asked.told(self.probe.number, rows)
        self.probe.number += 1

    @property
    def last(self) -> tuple[RankState, str]:
        return self.news[-1].state, self.news[-1].reason


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_rank_is_asked_and_answers_after_so_many_steps(stage: Stage) -> None:
    stage.listen()
    stage.agent.begin(replace(REQUEST, start_step=20))
    assert os.stat(stage.folder).st_mode & 0o777 == 0o711
    stage.exchange()
    assert stage.news[-1] == Progress("p1", 0, RankState.ARMED, "", 20)
    covered = []
    for number in range(10, 30):
        covered += [number] if stage.asked.covers(number) else []
        stage.step(8)
        stage.exchange()
    assert covered == [20, 21, 22]
    assert stage.news[-1] == Progress("p1", 0, RankState.DONE, "24 rows of 3 steps", 20, 3)
    assert os.listdir(stage.folder) == []


def test_a_start_that_has_passed_is_the_step_after_the_next(stage: Stage) -> None:
    stage.listen()
    stage.agent.begin(replace(REQUEST, start_step=5))
    stage.exchange()
    assert stage.news[-1].first_step == 12


def test_bytes_bound_what_is_sent(stage: Stage) -> None:
    stage.listen()
    stage.agent.begin(replace(REQUEST, steps=50, max_bytes=60 * 20))
    stage.exchange()
    for _ in range(60):
        stage.step(8)
    stage.exchange()
    assert stage.last == (RankState.DONE, "16 rows of 2 steps: its limit of bytes was reached")


def test_steps_are_bounded_by_the_probe_itself(stage: Stage) -> None:
    stage.listen()
    stage.agent.begin(replace(REQUEST, steps=10_000, max_bytes=10**9))
    stage.exchange()
    assert sum(stage.asked.covers(number) for number in range(20_000)) == MOST_STEPS


def test_a_stop_ends_it_in_the_probe(stage: Stage) -> None:
    stage.listen()
    stage.agent.begin(replace(REQUEST, start_step=20))
    stage.exchange()
    assert stage.asked.covers(20)
    stage.agent.cancel("p1", [1])
    stage.exchange()
    assert stage.asked.covers(20)
    stage.agent.cancel("p1")
    stage.exchange()
    assert stage.last == (RankState.STOPPED, "stopped by request")
    assert not stage.asked.covers(20)


def test_a_job_that_ends_says_what_it_sent(stage: Stage) -> None:
    stage.listen()
    stage.agent.begin(REQUEST)
    stage.exchange()
    for _ in range(4):
        stage.step(8)
    stage.asked.ends()
    stage.exchange()
    assert stage.last == (RankState.DONE, "16 rows of 2 steps: the job ended before")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda stage: setattr(stage.probe, "blocks", 0), "no blocks whose times can be taken"),
        (lambda stage: setattr(stage.probe, "off", True), "switched itself off"),
    ],
)
def test_a_probe_that_cannot_says_why(stage: Stage, spoil: Any, reason: str) -> None:
    spoil(stage)
    stage.listen()
    stage.agent.begin(REQUEST)
    stage.exchange()
    assert stage.last[0] is RankState.FAILED
    assert reason in stage.last[1]


def test_ranks_that_are_not_heard_or_older_or_silent_are_named(stage: Stage) -> None:
    stage.agent.begin(REQUEST)
    assert stage.last[0] is RankState.WAITING
    stage.clock.advance(16.0)
    stage.agent.tick()
    assert stage.last == (RankState.FAILED, UNHEARD)
    stage.agent.begin(replace(REQUEST, id="p2"))
    stage.clock.advance(16.0)
    stage.agent.hear("j", "0", 0)
    stage.agent.tick()
    assert stage.last == (RankState.FAILED, OLDER)
    stage.listen()
    stage.agent.begin(replace(REQUEST, id="p3"))
    stage.clock.advance(16.0)
    stage.agent.tick()
    assert stage.last == (RankState.FAILED, NOT_TAKEN)
    stage.agent.begin(replace(REQUEST, id="p4"))
    stage.exchange()
    stage.clock.advance(66.0)
    stage.agent.tick()
    assert stage.last == (RankState.FAILED, "it made fewer steps within 60 s")


def test_a_probe_that_ended_long_ago_is_not_asked(stage: Stage) -> None:
    stage.listen()
    stage.clock.advance(61.0)
    stage.agent.begin(REQUEST)
    stage.clock.advance(16.0)
    stage.agent.tick()
    assert stage.last == (RankState.FAILED, UNHEARD)


def test_an_agent_that_was_restarted_is_told_again(stage: Stage) -> None:
    stage.listen()
    stage.agent.begin(REQUEST)
    stage.exchange()
    for _ in range(6):
        stage.step(8)
    stage.probe.sent.clear()  # the answer is lost with the agent
    stage.agent = BlockTimes(str(stage.socket), stage.clock, stage.news.append)
    stage.agent.start()
    stage.listen()
    stage.agent.begin(REQUEST)
    stage.exchange()
    assert stage.last == (RankState.DONE, "24 rows of 3 steps")


def test_a_request_that_was_dropped_half_way_is_measured_when_a_restarted_agent_asks_again(stage: Stage) -> None:
    stage.listen()
    stage.agent.begin(replace(REQUEST, start_step=20))
    stage.exchange()
    assert stage.asked.covers(20)
    stage.agent = BlockTimes(str(stage.socket), stage.clock, stage.news.append)
    stage.agent.start()
    stage.exchange()  # The probe looks while there is no file, before its word is told to the new agent.
    stage.listen()
    stage.agent.begin(replace(REQUEST, start_step=20))
    stage.exchange()
    for _ in range(20):
        stage.step(8)
    stage.exchange()
    assert stage.last == (RankState.DONE, "24 rows of 3 steps")


def test_a_starting_agent_deletes_only_requests_of_its_own(stage: Stage, tmp_path: Path) -> None:
    stage.folder.mkdir()
    for name in ("0123456789abcdef", "0123456789abcdef.new", "thesis.txt"):
        (stage.folder / name).touch()
    stage.agent.start()
    assert os.listdir(stage.folder) == ["thesis.txt"]
    elsewhere = tmp_path / "elsewhere"
    stage.folder.rename(elsewhere)
    (elsewhere / "0123456789abcdef").touch()
    stage.folder.symlink_to(elsewhere)
    stage.agent.start()
    assert sorted(os.listdir(elsewhere)) == ["0123456789abcdef", "thesis.txt"]


def test_a_second_request_for_a_busy_rank_is_refused(stage: Stage) -> None:
    stage.listen()
    stage.agent.begin(REQUEST)
    stage.agent.begin(REQUEST)
    stage.agent.begin(replace(REQUEST, id="p2"))
    assert [one.state for one in stage.news] == [RankState.WAITING, RankState.FAILED]


@pytest.mark.parametrize(
    "answer",
    [None, 7, {}, {"request": "p2", "state": "done", "steps": 1, "rows": 1}, {"request": "p1", "state": "off"},
     {"request": "p1", "state": "done", "steps": "1", "rows": 1}, {"request": ["p1"], "state": "failed"}],
)  # fmt: skip
def test_what_is_no_answer_is_passed_over(stage: Stage, answer: object) -> None:
    stage.listen()
    stage.agent.begin(REQUEST)
    before = len(stage.news)
    stage.agent.answer("j", "0", 0, answer)
    stage.agent.answer("other", "0", 0, {"request": "p1", "state": "failed", "reason": "of another user"})
    assert len(stage.news) == before


@pytest.mark.parametrize("token", ["../../etc/passwd", "", "A" * 16, 5, None, "0" * 17])
def test_a_name_that_is_none_is_not_a_path(stage: Stage, token: object) -> None:
    stage.agent.hear("j", "0", 0)
    stage.agent.listens("j", "0", 0, {"token": token})
    stage.agent.begin(REQUEST)
    assert not stage.folder.exists()


WHOLE = {"v": 1, "request": "p", "from": 0, "steps": 1, "rows": 1, "until_ms": 2**42}


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"v": 1}', *(json.dumps(WHOLE | one) for one in ({"v": 2}, {"until_ms": 5}, {"from": "x"}))]
)
def test_files_that_are_no_requests_change_nothing(stage: Stage, content: str) -> None:
    stage.folder.mkdir()
    (stage.folder / stage.asked.token).write_text(content)
    stage.asked.look()
    assert stage.probe.sent == []
    assert not any(stage.asked.covers(number) for number in range(200))


def test_a_file_behind_a_link_or_of_another_user_is_passed_over(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "real").write_text(json.dumps(WHOLE))
    stage.folder.mkdir()
    (stage.folder / stage.asked.token).symlink_to(tmp_path / "real")
    stage.asked.look()
    assert stage.probe.sent == []
    if os.geteuid() == 0:
        os.unlink(stage.folder / stage.asked.token)
        (stage.folder / stage.asked.token).write_text(json.dumps(WHOLE))
        os.chown(stage.folder / stage.asked.token, 12345, 12345)
        stage.asked.look()
        assert stage.probe.sent == []


def test_a_folder_that_someone_else_made_is_not_used(stage: Stage, tmp_path: Path) -> None:
    stage.folder.symlink_to(tmp_path)
    stage.listen()
    stage.agent.begin(REQUEST)
    assert stage.last[0] is RankState.FAILED
    assert "is no folder of the agent's own user" in stage.last[1]


def test_a_forked_child_is_not_asked_in_its_parents_name(stage: Stage) -> None:
    before = stage.asked.token
    stage.asked.renew()
    assert stage.asked.token != before

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flightwatch.collectors.agent import SETTLE_SECONDS, Agent
from flightwatch.collectors.environment import Environment
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.clock import ManualClock, SystemClock
from flightwatch.core.errors import NoData, Refused, TransientError
from flightwatch.core.protocols import Command, Row


class ListSink:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.flushed: list[float] = []
        self.first = threading.Event()

    def emit(self, rows: Iterable[Row]) -> None:
        self.rows.extend(rows)
        self.first.set()

    def flush(self, timeout_seconds: float) -> bool:
        self.flushed.append(timeout_seconds)
        return True


def _environment(tmp_path: Path) -> Environment:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text("1.5 1 1 1/1 1\n")

    def no_command(words: Sequence[str], timeout_seconds: float) -> bytes:
        raise NoData("none")

    return Environment(FolderTree(str(tmp_path)), False, AgentSettings(), no_command)


def _state(last_sent_ms: int | None = None) -> Any:
    return SimpleNamespace(last_sent_ms=last_sent_ms, oldest_waiting_ms=None, dropped_rows=3)


def _command(kind: str) -> Command:
    return Command("c1", kind, "n", "j", "a", 0, 1)


def test_it_collects_until_told_to_stop_and_flushes(tmp_path: Path) -> None:
    sink = ListSink()
    agent = Agent(_environment(tmp_path), sink, SystemClock(), _state)
    thread = threading.Thread(target=agent.run)
    thread.start()
    assert sink.first.wait(300)
    agent.stop()
    thread.join(300)
    assert not thread.is_alive()
    assert sink.flushed == [10.0]
    assert any(row.table == "node_samples" and row.values["load1"] == 1.5 for row in sink.rows)


def test_the_heartbeat_tells_process_sink_and_collectors(tmp_path: Path) -> None:
    clock = ManualClock(50_000)
    agent = Agent(_environment(tmp_path), ListSink(), clock, lambda: _state(49_000))
    list(agent.runner.collect_once())
    clock.advance(61)
    rows = [row.values for row in agent.figures(50_000)]
    figures = {(row["instance"], row["name"]): row["value"] for row in rows}
    assert figures["", "last_sent_at_ms"] == 49_000
    assert figures["", "last_collected_at_ms"] == 50_000
    assert figures["", "dropped_rows_total"] == 3
    assert ("", "oldest_waiting_at_ms") not in figures
    rss_bytes = figures["", "rss_bytes"]
    assert isinstance(rss_bytes, float)
    assert rss_bytes > 1e6
    assert figures["host", "collect_success_total"] == 1
    assert figures["infiniband", "collect_no_data_total"] == 1
    assert {row["component"] for row in rows} == {"agent"}
    assert {row["instance"] for row in (figure.values for figure in agent.figures(51_000))} == {""}
    agent.runner.slots[2].counts.failure += 1
    assert {row.values["instance"] for row in agent.figures(52_000)} == {"", agent.runner.slots[2].name}
    clock.advance(61)
    assert len({row.values["instance"] for row in agent.figures(111_000)}) == len(agent.runner.slots) + 1


def test_commands_are_done_by_type_and_no_failure_ends_the_agent(tmp_path: Path, caplog: Any) -> None:
    done: list[str] = []
    answers: list[Any] = [
        [_command("good"), _command("unknown"), _command("refused")], TransientError("bus away"), [_command("good")],
    ]  # fmt: skip

    class Source:
        def poll(self) -> Sequence[Command]:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            result: Sequence[Command] = answer
            return result

    def refuse(command: Command) -> None:
        raise Refused("not now")

    agent = Agent(
        _environment(tmp_path), ListSink(), ManualClock(0), _state, Source(),
        {"good": lambda command: done.append(command.id), "refused": refuse},
    )  # fmt: skip
    for _ in range(3):
        agent.read_commands()
    assert done == ["c1", "c1"]
    assert "does not know it" in caplog.text
    assert "not now" in caplog.text
    assert "commands cannot be read: bus away" in caplog.text


def test_memory_is_settled_once_after_a_while(tmp_path: Path) -> None:
    settled: list[float] = []
    clock = ManualClock(0)
    agent = Agent(_environment(tmp_path), ListSink(), clock, _state, settle=lambda: settled.append(clock.monotonic_s()))
    waits = iter([False, False, False, True])

    def wait(timeout_seconds: float) -> bool:
        clock.advance(SETTLE_SECONDS / 2)
        return next(waits)

    agent.run(wait)
    assert settled == [SETTLE_SECONDS]


def test_a_clock_that_was_set_is_said_once_each_time(tmp_path: Path) -> None:
    sink, clock = ListSink(), ManualClock(1_000_000)
    agent = Agent(_environment(tmp_path), sink, clock, _state)
    #: Wall clock after each wait of 2 s: as it should be, set back, then small steps, then ahead.
    set_to_ms = iter([1_002_000, 404_000, 406_400, 408_000, 468_000])

    def wait(seconds: float) -> bool:
        clock.advance(seconds)
        wall_ms = next(set_to_ms, None)
        if wall_ms is not None:
            clock.set_wall_ms(wall_ms)
        return wall_ms is None

    agent.run(wait)
    said = [row.values for row in sink.rows if row.values.get("code") == "agent:clock_jump"]
    assert [(row["ts"], row["message"]) for row in said] == [
        (404_000, "the clock was set back by 600.0 s: rows of this node from before and after overlap"),
        (468_000, "the clock was set ahead by 58.0 s: rows of this node have a hole"),
    ]
    assert {row["severity"] for row in said} == {"warning"}

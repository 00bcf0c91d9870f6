from __future__ import annotations

import importlib
import pkgutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import flightwatch.pipeline.control
from flightwatch.core.clock import Clock, ManualClock
from flightwatch.core.errors import ConfigError, StaleGeneration, TransientError
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.outbox import Entry
from flightwatch.pipeline.control.schema import METADATA, OUTBOX
from flightwatch.pipeline.control.settings import ControlSettings
from tests.conftest import free_port

Another = Callable[[Clock | None], Control]
KEY = "ab" * 32


def test_a_role_has_one_holder_at_a_time(open_another: Another) -> None:
    clock = ManualClock()
    first, second = open_another(clock), open_another(clock)
    lease = first.leases.acquire("engine", "a", 10)
    assert lease is not None
    assert lease.epoch == 1
    assert second.leases.acquire("engine", "b", 10) is None
    assert second.leases.holder("engine") == lease
    assert second.leases.acquire("detect", "b", 10) is not None


def test_an_expired_or_released_role_is_taken_with_a_new_epoch(open_another: Another) -> None:
    clock = ManualClock()
    first, second = open_another(clock), open_another(clock)
    assert first.leases.acquire("engine", "a", 10) is not None
    clock.advance(11)
    assert first.leases.holder("engine") is None
    taken = second.leases.acquire("engine", "b", 10)
    assert taken is not None
    assert taken.epoch == 2
    second.leases.release(taken)
    again = first.leases.acquire("engine", "a", 10)
    assert again is not None
    assert again.epoch == 3


def test_renewing_keeps_the_epoch_and_a_restart_does_not(open_another: Another) -> None:
    clock = ManualClock()
    control = open_another(clock)
    lease = control.leases.acquire("engine", "a", 10)
    assert lease is not None
    clock.advance(9)
    renewed = control.leases.renew(lease, 10)
    assert renewed.epoch == lease.epoch
    assert renewed.expires_at_ms == lease.expires_at_ms + 9_000
    restarted = control.leases.acquire("engine", "a", 10)
    assert restarted is not None
    assert restarted.epoch == lease.epoch + 1
    with pytest.raises(StaleGeneration, match="passed to another"):
        control.leases.renew(renewed, 10)


def test_a_paused_holder_that_comes_back_changes_nothing(open_another: Another) -> None:
    clock = ManualClock()
    paused, active = open_another(clock), open_another(clock)
    old = paused.leases.acquire("engine", "paused", 10)
    assert old is not None
    clock.advance(60)
    new = active.leases.acquire("engine", "active", 10)
    assert new is not None
    with active.leases.guarded(new) as connection:
        active.outbox.append(connection, "t", "k", {"from": "active"})

    with pytest.raises(StaleGeneration), paused.leases.guarded(old) as connection:
        paused.outbox.append(connection, "t", "k", {"from": "paused"})
    with pytest.raises(StaleGeneration):
        paused.leases.renew(old, 10)
    with pytest.raises(StaleGeneration):
        paused.outbox.drain(old, lambda entry: None)
    paused.leases.release(old)

    assert [entry.payload for entry in active.outbox.waiting()] == [{"from": "active"}]
    assert active.leases.holder("engine") == new


def test_a_lease_that_expires_inside_the_block_rolls_it_back(open_another: Another) -> None:
    clock = ManualClock()
    control = open_another(clock)
    lease = control.leases.acquire("engine", "a", 10)
    assert lease is not None

    def write_too_slowly() -> None:
        with control.leases.guarded(lease) as connection:
            control.outbox.append(connection, "t", "k", {})
            clock.advance(11)

    with pytest.raises(StaleGeneration, match="expired"):
        write_too_slowly()
    assert control.outbox.waiting() == []


def test_nobody_takes_the_role_between_check_and_commit(open_another: Another) -> None:
    clock = ManualClock()
    holder, contender = open_another(clock), open_another(clock)
    lease = holder.leases.acquire("engine", "a", 10)
    assert lease is not None
    order: list[str] = []

    def contend() -> None:
        taken = contender.leases.acquire("engine", "b", 10)
        order.append(f"contender got {taken.epoch if taken else None}")

    thread = threading.Thread(target=contend)
    with holder.transaction() as connection:
        holder.leases._check(connection, lease)
        thread.start()
        thread.join(0.2)
        clock.advance(11)
        order.append("holder commits")
    thread.join()
    assert order == ["holder commits", "contender got 2"]


def test_eight_contenders_have_one_winner(open_another: Another) -> None:
    controls = [open_another(None) for _ in range(8)]
    won: list[int] = []
    barrier = threading.Barrier(8)

    def contend(number: int) -> None:
        barrier.wait()
        if controls[number].leases.acquire("engine", f"holder-{number}", 60) is not None:
            won.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_outbox_publishes_in_order_once_marked(open_another: Another) -> None:
    control = open_another(None)
    lease = control.leases.acquire("drain", "a", 60)
    assert lease is not None
    with control.transaction() as connection:
        numbers = [control.outbox.append(connection, "flightwatch.findings", f"k{i}", {"i": i}) for i in range(5)]
    assert numbers == sorted(set(numbers))
    seen: list[Entry] = []
    assert control.outbox.drain(lease, seen.append, limit=3) == 3
    assert control.outbox.drain(lease, seen.append) == 2
    assert [(entry.key, entry.payload) for entry in seen] == [(f"k{i}", {"i": i}) for i in range(5)]
    assert control.outbox.drain(lease, seen.append) == 0
    assert control.outbox.forget(2**62) == 5


def test_what_was_published_before_a_failure_stays_marked(open_another: Another) -> None:
    control = open_another(None)
    lease = control.leases.acquire("drain", "a", 60)
    assert lease is not None
    with control.transaction() as connection:
        for i in range(3):
            control.outbox.append(connection, "t", str(i), {})

    def publish(entry: Entry) -> None:
        if entry.key == "1":
            raise TransientError("the bus is away")

    with pytest.raises(TransientError):
        control.outbox.drain(lease, publish)
    assert [entry.key for entry in control.outbox.waiting()] == ["1", "2"]


def test_a_failed_transaction_leaves_nothing_in_the_outbox(open_another: Another) -> None:
    control = open_another(None)

    def write_and_fail() -> None:
        with control.transaction() as connection:
            control.outbox.append(connection, "t", "k", {"fine": 1})
            control.outbox.append(connection, "t", "k", {"not JSON": float("nan")})

    with pytest.raises(ValueError, match="Out of range"):
        write_and_fail()
    assert control.outbox.waiting() == []


def test_agent_keys(open_another: Another) -> None:
    control = open_another(None)
    assert control.agent_keys.enroll("node-1", KEY.upper(), "agent") is True
    assert control.agent_keys.enroll("node-1", KEY) is False
    assert control.agent_keys.enroll("node-1", "cd" * 32) is True
    assert control.agent_keys.valid() == {"node-1": frozenset({KEY, "cd" * 32})}
    assert control.agent_keys.revoke("node-1", KEY) == 1
    assert control.agent_keys.valid() == {"node-1": frozenset({"cd" * 32})}
    with pytest.raises(ConfigError, match="revoked"):
        control.agent_keys.enroll("node-1", KEY)
    assert control.agent_keys.revoke("node-1") == 1
    assert control.agent_keys.valid() == {"node-1": frozenset()}


@pytest.mark.parametrize(("node", "key"), [("a; rm -rf /", KEY), ("", KEY), ("node-1", "xy"), ("node-1", "é" * 64)])
def test_odd_names_and_keys_are_refused(open_another: Another, node: str, key: str) -> None:
    with pytest.raises(ConfigError):
        open_another(None).agent_keys.enroll(node, key)


def test_migrations_make_what_the_schema_says(open_another: Another) -> None:
    for module in pkgutil.iter_modules(flightwatch.pipeline.control.__path__):
        if module.name.startswith("schema"):
            importlib.import_module(f"flightwatch.pipeline.control.{module.name}")
    control = open_another(None)
    with control.transaction() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), METADATA)
    assert differences == []


def test_opening_together_migrates_once(control_url: str) -> None:
    opened: list[Control] = []
    threads = [
        threading.Thread(target=lambda: opened.append(open_control(control_url, ControlSettings()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4
    for control in opened:
        assert control.outbox.waiting() == []
        control.close()


def test_a_newer_database_is_refused(control_url: str) -> None:
    control = open_control(control_url, ControlSettings())
    with control.transaction() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    control.close()
    with pytest.raises(ConfigError, match="newer Flightwatch"):
        open_control(control_url, ControlSettings())


def test_the_file_is_private_and_uses_a_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "control.db"
    control = open_control(f"sqlite://{path}", ControlSettings())
    with control.transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    control.close()


def test_a_backup_is_a_whole_private_copy(tmp_path: Path) -> None:
    control = open_control(f"sqlite://{tmp_path / 'control.db'}", ControlSettings())
    with control.transaction() as connection:
        control.outbox.append(connection, "t", "k", {"kept": True})
    control.backup(tmp_path / "copy.db")
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="exists"):
        control.backup(tmp_path / "copy.db")
    control.close()
    copy = open_control(f"sqlite://{tmp_path / 'copy.db'}", ControlSettings())
    assert [entry.payload for entry in copy.outbox.waiting()] == [{"kept": True}]
    copy.close()


def test_a_busy_database_is_transient(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'control.db'}"
    first = open_control(url, ControlSettings())
    second = open_control(url, ControlSettings(busy_timeout_seconds=1))
    with first.transaction() as connection:
        connection.execute(sa.select(OUTBOX)).all()
        assert second.outbox.waiting() == []
        with pytest.raises(TransientError, match="locked"), second.transaction():
            pass
    first.close()
    second.close()


def test_an_absent_server_is_transient() -> None:
    with pytest.raises(TransientError):
        open_control(f"postgresql://nobody@127.0.0.1:{free_port()}/control", ControlSettings(busy_timeout_seconds=1))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://u@h/d", "known are"),
        ("sqlite:///", "ABSOLUTE"),
        ("postgresql://u:secret@h/d", "PASSWORD"),
        ("postgresql://u@h", "postgresql://USER"),
        ("mysql://u:secret@h/d", r"\*\*\*"),
    ],
)
def test_malformed_urls_are_refused_without_showing_a_password(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refusal:
        open_control(url, ControlSettings())
    assert "secret" not in str(refusal.value)


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "control.db"
    file.write_bytes(b"\xff" * 9_000)
    with pytest.raises(TransientError, match=f"the control database {file} is damaged .*: put the copy from a backup"):
        open_control(f"sqlite:///{file}", ControlSettings())


def test_threads_of_one_process_take_turns_and_give_up_in_time(tmp_path: Path) -> None:
    control = open_control(f"sqlite://{tmp_path / 'control.db'}", ControlSettings(busy_timeout_seconds=1))
    done: list[object] = []

    def write() -> None:
        try:
            with control.transaction() as connection:
                done.append(connection.execute(sa.text("SELECT 1")).scalar_one())
        except TransientError as error:
            done.append(str(error))

    with control.transaction():
        late = threading.Thread(target=write)
        late.start()
        late.join(300)
    assert done == ["the control database did not answer: another thread of this process writes too long"]
    write()
    assert done[1:] == [1]
    control.close()

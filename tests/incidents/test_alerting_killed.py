"""A real process that sends is killed with -9, again and again: no message is lost, at most one a channel repeats."""

from __future__ import annotations

import collections
import signal
import subprocess
import sys
from pathlib import Path

from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import Severity
from tests.incidents.engine_kit import Rig
from tests.incidents.grouping_kit import finding
from tests.incidents.http_receiver import Receiver, Reply, receiving

INCIDENTS, KILLS = 40, 3


def start(rig: Rig, receiver: Receiver) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__).with_name("alerting_child.py")), rig.url, receiver.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"READY\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(300)
    assert process.stdout is not None
    process.stdout.close()


def test_killed_while_it_sends(tmp_path: Path) -> None:
    rig = Rig(tmp_path, storm_incidents=100_000)
    for i in range(INCIDENTS):
        rig.take(finding(Kind.DEVICE_ERROR, f"x{i}", 0, rig.clock.now_ms(), severity=Severity.P1))
    rig.wait(1)
    wanted = {one.id for one in rig.incidents()}
    assert len(wanted) == INCIDENTS
    rig.control.leases.release(rig.lease)
    rig.close()
    with receiving(Reply(204)) as receiver:
        for kill in range(1, KILLS + 1):
            process = start(rig, receiver)
            receiver.wait_for(kill * 2 * INCIDENTS // (KILLS + 2), 60)
            end(process)
        process = start(rig, receiver)
        try:
            receiver.wait_for(2 * INCIDENTS, 60)
            with receiver.arrived:
                receiver.arrived.wait_for(
                    lambda: all(len(keys(receiver, channel)) == INCIDENTS for channel in ("one", "two")), 60
                )
        finally:
            end(process)
        for channel in ("one", "two"):
            seen = keys(receiver, channel)
            assert set(seen) == wanted
            assert sum(count - 1 for count in seen.values()) <= KILLS
        # A repeat carries the key of the first attempt: the receiver can drop it.
        idempotency = collections.Counter((one.path, one.headers["Idempotency-Key"]) for one in receiver.requests)
        assert len(idempotency) == 2 * INCIDENTS


def keys(receiver: Receiver, channel: str) -> collections.Counter[str]:
    return collections.Counter(one.json["key"] for one in receiver.requests if one.path == f"/{channel}")

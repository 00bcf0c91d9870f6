"""kill -9 of publishers: what was acknowledged is stored, once, in order."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from flightwatch.pipeline.bus.base import Partition
from flightwatch.pipeline.bus.local import LocalBus
from flightwatch.pipeline.bus.settings import BusSettings

SETTINGS = BusSettings(segment_bytes=1_000_000)
PUBLISHER = """
import sys
from pathlib import Path
from flightwatch.pipeline.bus.local import LocalBus
from flightwatch.pipeline.bus.settings import BusSettings
bus = LocalBus(Path(sys.argv[1]), BusSettings(segment_bytes=1_000_000))
number = int(sys.argv[2])
while True:
    futures = [(n, bus.publish("t", "k", b"%d " % n + bytes(n * 37 % 30_000))) for n in range(number, number + 7)]
    for n, future in futures:
        future.result(120)
        print(n, flush=True)
    number += 7
"""


def kill_publishers(folder: Path, kills: int, seed: int) -> None:
    bus = LocalBus(folder, SETTINGS)
    bus.create_topic("t", 1, None, None)
    chance = random.Random(seed)
    acknowledged: list[int] = []
    for kill in range(kills):
        arguments = [sys.executable, "-c", PUBLISHER, str(folder), str(kill * 100_000)]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 300)):
            acknowledged.append(int(process.stdout.readline()))
        process.kill()
        rest, _ = process.communicate()
        acknowledged += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    stored: list[int] = []
    offset = 0
    while messages := bus.read(Partition("t", 0), offset, 10**7):
        assert [message.offset for message in messages] == list(range(offset, offset + len(messages)))
        offset += len(messages)
        for message in messages:
            number, _, content = message.value.partition(b" ")
            assert content == bytes(int(number) * 37 % 30_000)
            stored.append(int(number))
    assert stored == sorted(set(stored))
    assert set(acknowledged) <= set(stored)
    # Beyond the acknowledged, at most what was on its way when the process died.
    assert len(stored) - len(acknowledged) <= 7 * kills
    bus.close()


def test_what_was_acknowledged_survives_kills_of_the_publisher(tmp_path: Path) -> None:
    kill_publishers(tmp_path / "bus", kills=4, seed=1)


@pytest.mark.soak
def test_what_was_acknowledged_survives_many_kills(tmp_path: Path) -> None:
    kill_publishers(tmp_path / "bus", kills=150, seed=2)

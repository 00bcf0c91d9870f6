"""A reader in a process of its own, for tests that kill or stop it. Run as a script.

`bus_member.py URL TOPIC GROUP RESULT KILL_AT [COUNT]` reads like ingest: poll, store the intent, work (append to
RESULT), commit the end; with KILL_AT it kills itself with SIGKILL after that step. KILL_AT "hold" joins, prints
HELD, and on a line of input tries to commit, printing COMMITTED or STALE.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from flightwatch.core.errors import StaleGeneration, TransientError
from flightwatch.pipeline.bus.base import Message, Subscription
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings


def reached(step: str, kill_at: str) -> None:
    if step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


def one_round(subscription: Subscription, result: str, kill_at: str) -> int:
    by_partition: dict[object, list[Message]] = {}
    for message in subscription.poll(2_000, 0.2):
        by_partition.setdefault(message.partition, []).append(message)
    reached("poll", kill_at)
    for messages in by_partition.values():
        partition, start, end = messages[0].partition, messages[0].offset, messages[-1].offset + 1
        subscription.commit(partition, start, f"end={end}")
        reached("intent", kill_at)
        with open(result, "a", encoding="utf-8") as file:
            file.writelines(f"{partition.number} {m.offset} {m.key} {m.value.decode()}\n" for m in messages)
        reached("work", kill_at)
        subscription.commit(partition, end)
        reached("commit", kill_at)
    return sum(map(len, by_partition.values()))


def work(subscription: Subscription, result: str, kill_at: str, count: int) -> None:
    seen = 0
    deadline = time.monotonic() + 300
    while seen < count and time.monotonic() < deadline:
        seen += one_round(subscription, result, kill_at)


def hold(subscription: Subscription) -> None:
    while not subscription.assignment():
        subscription.poll(1, 0.2)
    partition = min(subscription.assignment())
    print("HELD", flush=True)
    sys.stdin.readline()
    for _ in range(20):
        try:
            subscription.commit(partition, 7, "zombie")
            print("COMMITTED", flush=True)
            return
        except StaleGeneration:
            print("STALE", flush=True)
            return
        except TransientError:
            time.sleep(0.1)
    print("UNKNOWN", flush=True)


def main() -> None:
    url, topic, group, result, kill_at, *rest = sys.argv[1:]
    session = float(os.environ["TEST_SESSION_SECONDS"])
    bus = open_bus(url, BusSettings(session_timeout_seconds=session))
    subscription = bus.subscribe([topic], group)
    if kill_at == "hold":
        hold(subscription)
    else:
        work(subscription, result, kill_at, int(rest[0]))
        subscription.close()
    bus.close()


if __name__ == "__main__":
    main()

"""Simulated rows travel as agents' rows do: numbered per node and lane, signed where it is demanded."""

from __future__ import annotations

from pathlib import Path

from flightwatch.core.clock import ManualClock
from flightwatch.core.ed25519 import signing_key, verify
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics
from flightwatch.pipeline.codec import decode
from flightwatch.pipeline.codec.read import signature_of
from flightwatch.simulator.agents import SimulatedAgents


def test_batches_are_numbered_per_node_and_lane_and_signed(tmp_path: Path) -> None:
    clock, key = ManualClock(), signing_key(bytes(32))
    bus = open_bus(f"sqlite:///{str(tmp_path).lstrip('/')}/bus", BusSettings(), clock)
    setup_topics(bus, BusSettings())
    agents = SimulatedAgents(bus, clock, "sim", key.sign)
    for second in range(2):
        agents.send(
            [
                Row("node_samples", {"ts": second, "node": node, "cluster": "sim", "cpu_pct": 1.0})
                for node in ("sim-a", "sim-b")
            ]
        )
    messages = [
        message for partition in bus.partitions(Topic.SAMPLES.value) for message in bus.read(partition, 0, 10_000_000)
    ]
    headers = [decode(message.value).header for message in messages]
    assert sorted((header.node, header.seq) for header in headers) == [
        ("sim-a", 1), ("sim-a", 2), ("sim-b", 1), ("sim-b", 2),
    ]  # fmt: skip
    assert len({header.agent_id for header in headers}) == 2
    for message in messages:
        signed, signature = signature_of(message.value)
        assert signature is not None
        assert verify(key.public_key, signed, signature)
    assert agents.sent_rows == 4
    bus.close()

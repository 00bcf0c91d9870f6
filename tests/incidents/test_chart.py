"""Pictures of the evidence."""

from __future__ import annotations

import struct

from flightwatch.incidents.chart import draw
from flightwatch.pipeline.store.alert_reads import Series
from tests.incidents.alert_kit import OPENED_MS


def series(with_peers: bool = True) -> Series:
    times = [OPENED_MS + i * 10_000 for i in range(60)]
    target = [None if i == 7 else 100.0 + (30 if i > 30 else 0) for i in range(60)]
    peers = [100.0 if with_peers else None] * 60
    return Series("compute time of a step (ms)", times, target, peers, peers, peers)


def size(png: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_a_picture_is_a_small_png() -> None:
    png = draw(series(), OPENED_MS + 300_000, "gpu-0417 GPU 3")
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert size(png) == (720, 300)
    assert len(png) < 100_000


def test_odd_names_and_no_peers_draw_too() -> None:
    assert size(draw(series(with_peers=False), OPENED_MS, "$x_{y}$ 节点\n%s")) == (720, 300)

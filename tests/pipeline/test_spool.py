from __future__ import annotations

import hashlib
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from flightwatch.core.catalogue import TABLES
from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import Backpressure, BadRecord, ConfigError, Refused
from flightwatch.core.protocols import Row, Value
from flightwatch.core.vocabulary import Lane
from flightwatch.pipeline.batch import BatchHeader
from flightwatch.pipeline.blobs import BlobSender, Chunk, chunk_of, split
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.codec import decode, encode
from flightwatch.pipeline.sender import Sender
from flightwatch.pipeline.spool import Sealed, Spool, SpoolSettings
from tests.pipeline.sender_kit import ScriptedBus


def sealed(seq: int, size: int = 1_000, lane: Lane = Lane.SAMPLES) -> Sealed:
    return Sealed(lane, "spool", seq, 3, 1_700_000_000_000, bytes([seq % 256]) * size)


def test_batches_come_back_in_order_after_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append([sealed(1), sealed(2)], 0)
    spool.append([sealed(3)], 0)
    first = spool.first(Lane.SAMPLES)
    assert first is not None
    assert (first.seq, first.rows, first.value) == (1, 3, b"\x01" * 1_000)
    spool.pop(Lane.SAMPLES)
    spool.close(clean=True)
    again = Spool(tmp_path / "s")
    seqs = []
    while (batch := again.first(Lane.SAMPLES)) is not None:
        seqs.append(batch.seq)
        again.pop(Lane.SAMPLES)
    assert seqs == [2, 3]
    assert again.size_bytes(Lane.SAMPLES) == 0
    again.close(clean=True)
    third = Spool(tmp_path / "s")
    assert third.backlog(Lane.SAMPLES) == 0
    third.close(clean=True)


def test_identity_survives_and_the_spool_id_changes_only_after_a_kill(tmp_path: Path) -> None:
    first = Spool(tmp_path / "s")
    first.use_seq(Lane.OPS)
    first.close(clean=True)
    second = Spool(tmp_path / "s")
    assert (second.agent_id, second.spool_id) == (first.agent_id, first.spool_id)
    assert (second.following_seq(Lane.OPS), second.following_seq(Lane.EVENTS)) == (2, 1)
    second.close(clean=False)
    third = Spool(tmp_path / "s")
    assert third.agent_id == first.agent_id
    assert third.spool_id != first.spool_id
    assert third.following_seq(Lane.OPS) == 1
    third.close(clean=True)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"spool_id": 1}', "\x00\x00"])
def test_a_damaged_state_starts_a_new_spool_id_and_keeps_the_backlog(tmp_path: Path, content: str) -> None:
    spool = Spool(tmp_path / "s")
    spool.append([sealed(1)], 0)
    spool.close(clean=True)
    (tmp_path / "s" / "state.json").write_text(content)
    again = Spool(tmp_path / "s")
    assert again.spool_id != spool.spool_id
    assert again.backlog(Lane.SAMPLES) == 1
    again.close(clean=True)


def test_two_agents_cannot_share_a_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    with pytest.raises(Refused, match="another agent uses the spool"):
        Spool(tmp_path / "s")
    spool.close(clean=True)
    Spool(tmp_path / "s").close(clean=True)


def test_the_lock_holds_between_processes_and_ends_with_them(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from flightwatch.pipeline.spool import Spool\n"
        "Spool(Path(sys.argv[1])); print('HELD', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "s")]
    other = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "HELD\n"
    with pytest.raises(Refused):
        Spool(tmp_path / "s")
    other.kill()
    other.communicate()
    Spool(tmp_path / "s").close(clean=True)


def test_files_are_private_and_an_unusable_folder_is_one_sentence(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append([sealed(1)], 0)
    for path in (tmp_path / "s").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    spool.close(clean=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not a folder"):
        Spool(tmp_path / "file")


def test_disk_is_given_back_as_batches_are_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", SpoolSettings(segment_bytes=200_000))
    for seq in range(1, 101):
        spool.append([sealed(seq, 20_000)], 0)
    full = sum(path.stat().st_size for path in (tmp_path / "s").rglob("*.db"))
    for _ in range(90):
        assert spool.first(Lane.SAMPLES) is not None
        spool.pop(Lane.SAMPLES)
    left = sum(path.stat().st_size for path in (tmp_path / "s").rglob("*.db"))
    assert left < full / 3
    spool.close(clean=True)


def test_a_lane_of_which_nothing_can_be_read_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path / "s")
    spool.append([sealed(1)], 0)
    spool.append([sealed(1, lane=Lane.EVENTS)], 0)
    spool.close(clean=True)
    for file in (tmp_path / "s" / "samples").iterdir():
        file.write_bytes(b"\xff" * 9_000)
    again = Spool(tmp_path / "s")
    assert (again.backlog(Lane.SAMPLES), again.backlog(Lane.EVENTS)) == (0, 1)
    again.append([sealed(2)], 0)
    assert again.backlog(Lane.SAMPLES) == 1
    again.close(clean=True)
    assert len(list((tmp_path / "s").glob("samples.damaged-*"))) == 1
    assert "the batches in it are lost" in caplog.text


def test_a_damaged_spool_file_costs_its_batches_only(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", SpoolSettings(segment_bytes=200_000))
    for seq in range(1, 61):
        spool.append([sealed(seq, 20_000)], 0)
    spool.close(clean=True)
    files = sorted((tmp_path / "s" / "samples").glob("*.db"))
    assert len(files) > 3
    files[1].write_bytes(b"not a database at all" * 1000)
    again = Spool(tmp_path / "s", SpoolSettings(segment_bytes=200_000))
    seqs = []
    while (batch := again.first(Lane.SAMPLES)) is not None:
        seqs.append(batch.seq)
        again.pop(Lane.SAMPLES)
    assert seqs == sorted(seqs)
    assert seqs[0] == 1
    assert seqs[-1] == 60
    assert 60 - len(seqs) <= 60 / (len(files) - 2)
    again.close(clean=True)


def test_events_are_given_up_last_when_the_disk_is_full(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for lane in (Lane.EVENTS, Lane.SAMPLES, Lane.BLOBS):
        spool.append([sealed(1, lane=lane), sealed(2, lane=lane)], 0)
    order = []
    while evicted := spool.make_room(Lane.EVENTS):
        assert [(gap.first_seq, gap.last_seq, gap.rows) for gap in evicted] == [(1, 2, 6)]
        order.append(evicted[0].lane)
    assert order == [Lane.BLOBS, Lane.SAMPLES, Lane.EVENTS]
    spool.append([sealed(1, lane=Lane.EVENTS)], 0)
    assert spool.make_room(Lane.OPS) == []
    spool.close(clean=True)


def device_rows(now_ms: int, noise: random.Random) -> list[Row]:
    """One scrape of a node with 8 devices: every number a vendor library fills, with the noise of real sensors."""
    names = [column for column in TABLES["device_samples"].columns if column.type in ("f32", "u32", "u64")]
    rows = []
    for device in range(8):
        values: dict[str, Value] = {"ts": now_ms, "device": device, "vendor": "nvidia", "uuid": f"GPU-{device:032x}"}
        for index, column in enumerate(names):
            if column.name in ("src_offset", "rank"):
                continue
            if column.type == "f32":
                values[column.name] = round(50 + index + noise.gauss(0, 2), 1)
            else:
                values[column.name] = index * 10**6 + now_ms % 10**7 + noise.randrange(5_000)
        rows.append(Row("device_samples", values))
    return rows


def test_an_hour_without_broker_loses_nothing(tmp_path: Path) -> None:
    """1,250 nodes x 8 device rows a second = 10,000 rows/s. Each node spools its own share, so one agent over one
    hour of injected time, with real encoded batches, is the whole arithmetic."""
    clock, bus = ManualClock(), ScriptedBus("raise")
    spool = Spool(tmp_path / "s")
    sender = Sender(cast(Bus, bus), spool, encode, "node0001", "c", clock, seed=3)
    noise = random.Random(7)
    for _ in range(3_600):
        sender.emit(device_rows(clock.now_ms(), noise))
        clock.advance(1)
        sender.step()
    largest = spool.size_bytes(Lane.SAMPLES)
    batches = spool.backlog(Lane.SAMPLES)
    assert sender.state().dropped_rows == 0
    # The quota of the lane holds more than a day of this; the broker gets the backlog of the fleet at the drain rate.
    assert largest * 24 < 0.45 * spool.settings.rows_bytes
    bus.mode = "ack"
    started = clock.monotonic_s()
    while spool.backlog(Lane.SAMPLES) and clock.monotonic_s() < started + 600:
        clock.advance(0.02)
        sender.step()
    seconds = clock.monotonic_s() - started
    rows = [row for topic, _, value in bus.stored if topic.endswith("samples") for row in decoded_rows(value)]
    stamps = [row.values["ts"] for row in rows if row.table == "device_samples"]
    assert len(stamps) == 3_600 * 8
    assert stamps == sorted(stamps, key=lambda ts: cast(int, ts))
    headers = [decode(value).header for topic, _, value in bus.stored if topic.endswith("samples")]
    assert [header.seq for header in headers] == list(range(1, len(headers) + 1))
    print(f"one node, one hour: {batches} batches, {largest / 1e6:.1f} MB of spool, drained in {seconds:.0f} s")
    spool.close(clean=False)


def decoded_rows(value: bytes) -> list[Row]:
    return list(decode(value).rows)


def make_blobs(tmp_path: Path, bus: ScriptedBus, **settings: Any) -> tuple[Sender, BlobSender, ManualClock]:
    clock = ManualClock()
    sender = Sender(cast(Bus, bus), Spool(tmp_path / "s", SpoolSettings(**settings)), encode, "n1", "c", clock, seed=1)
    return sender, BlobSender(sender, encode, chunk_bytes=100_000), clock


def chunks(bus: ScriptedBus) -> list[tuple[BatchHeader, Chunk]]:
    found = []
    for topic, _, value in bus.stored:
        if topic == "flightwatch.blobs":
            message, data = split(value)
            header = decode(message).header
            found.append((header, chunk_of(header, data)))
    return found


@pytest.mark.parametrize("size", [0, 1, 99_999, 100_000, 100_001, 450_000])
def test_a_blob_arrives_whole_in_checked_chunks(tmp_path: Path, size: int) -> None:
    bus = ScriptedBus()
    sender, blobs, clock = make_blobs(tmp_path, bus)
    content = os.urandom(size)
    blobs.put("trace-1", "trace", io.BytesIO(content), {"rank": "3"})
    for _ in range(20):
        clock.advance(0.1)
        sender.step()
    found = [chunk for _, chunk in chunks(bus)]
    assert b"".join(chunk.data for chunk in found) == content
    assert [chunk.index for chunk in found] == list(range(len(found)))
    assert [chunk.last for chunk in found] == [False] * (len(found) - 1) + [True]
    last = found[-1]
    assert (last.total_bytes, last.total_sha256) == (size, hashlib.sha256(content).hexdigest())
    assert (last.blob_id, last.kind, last.attributes) == ("trace-1", "trace", {"rank": "3"})
    assert [header.seq for header, _ in chunks(bus)] == list(range(1, len(found) + 1))
    sender._spool.close(clean=False)


def test_a_full_blobs_lane_pushes_back(tmp_path: Path) -> None:
    bus = ScriptedBus("raise")
    sender, blobs, _ = make_blobs(tmp_path, bus, blobs_bytes=1_000_000)
    with pytest.raises(Backpressure, match="blobs_bytes"):
        blobs.put("b", "trace", io.BytesIO(os.urandom(2_000_000)), {})
    assert sender._spool.size_bytes(Lane.BLOBS) <= 1_100_000
    sender._spool.close(clean=False)


def test_a_changed_chunk_is_a_bad_record(tmp_path: Path) -> None:
    bus = ScriptedBus()
    sender, blobs, clock = make_blobs(tmp_path, bus)
    blobs.put("b", "trace", io.BytesIO(b"content"), {})
    clock.advance(0.1)
    sender.step()
    value = next(value for topic, _, value in bus.stored if topic == "flightwatch.blobs")
    message, data = split(value)
    with pytest.raises(BadRecord, match="sha256"):
        chunk_of(decode(message).header, data + b"!")
    for damaged in (b"", b"FB\xff\xff\xff\xff", value[:8], b"XX" + value[2:]):
        with pytest.raises(BadRecord):
            split(damaged)
    sender._spool.close(clean=False)


def test_an_agent_imports_neither_kafka_nor_numpy(tmp_path: Path) -> None:
    code = (
        "import sys, json\nfrom flightwatch.pipeline.bus.connect import open_bus\n"
        "from flightwatch.pipeline import sender, commands, blobs\nfrom flightwatch.pipeline.codec import encode\n"
        "bus = open_bus('sqlite://' + sys.argv[1])\nbus.close()\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "bus")], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"kafka", "numpy", "pyarrow", "pandas", "cryptography", "pydantic", "sqlalchemy"}

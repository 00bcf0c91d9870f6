"""Dead letters: what they carry, and that replaying one twice is replaying it once."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli import main
from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import ConfigError, Refused
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline import dead
from flightwatch.pipeline.batch import Batch
from flightwatch.pipeline.bus.base import Bus, Message, Partition
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.codec import decode, encode
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.letters import letters_sql, listed
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.codec.codec_samples import header
from tests.pipeline.ingest.ingest_stage import SETTINGS, Agent, empty, ingest_all, now_ms, setup_topics

PLACE = Partition("flightwatch.rows.samples", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dead")


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    opened = open_store(f"chdb://{folder}/store", StoreSettings())
    migrate(opened)
    empty(opened)
    yield opened
    opened.close()


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    opened = open_bus(f"sqlite://{tmp_path}/bus")
    setup_topics(opened)
    yield opened
    opened.close()


def ingest(bus: Bus, store: Store) -> None:
    ingest_all(Ingest(bus, store, SETTINGS, cluster="c1", node="x"), bus)


def test_a_letter_of_a_message_carries_its_bytes() -> None:
    letter = dead.whole_message(Message(PLACE, 9, "n1", b"\xff\x00junk", 1_000), "not a batch")
    assert letter.id == "flightwatch.rows.samples/1/9/-1"
    assert base64.b64decode(letter.payload) == b"\xff\x00junk"
    row = letter.row()
    assert set(row.values) == set(TABLES["dead_letters"].column_names)


def test_a_letter_of_rows_keeps_text_that_is_not_utf_8() -> None:
    message = Message(PLACE, 9, "n1", b"", 1_000)
    letter = dead.some_rows(message, 4, "x", "events", [{"message": "a\udcffb", "ts": 5}], "n\udcff", "c1")
    assert json.loads(letter.payload) == {"table": "events", "rows": [{"message": "a\udcffb", "ts": 5}]}
    assert letter.node == "n\\udcff"


def test_a_message_too_large_for_a_letter_stays_on_the_bus() -> None:
    message = Message(PLACE, 9, "n1", bytes(dead.MAX_PAYLOAD_BYTES + 1), 1_000)
    assert dead.whole_message(message, "large").payload == ""


def test_letters_are_numbered_the_same_way_every_time() -> None:
    message = Message(PLACE, 9, "n1", bytes(600_000), 1_000)
    letters = [dead.whole_message(message, "large") for _ in range(4)]
    first, again = (list(dead.batches(letters, "a", "s")) for _ in range(2))
    assert first == again
    headers = [decode(value).header for value in first]
    assert [h.seq for h in headers] == list(range(1, len(first) + 1))
    assert sum(len(decode(value).rows) for value in first) == 4


@pytest.fixture
def newer_table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hides `node_samples` from the catalogue: as if an older program read what a newer one wrote."""
    from flightwatch.pipeline.ingest import plan

    older = {name: table for name, table in TABLES.items() if name != "node_samples"}
    monkeypatch.setattr(plan, "TABLES", older)
    return lambda: monkeypatch.setattr(plan, "TABLES", TABLES)


def test_an_unknown_table_waits_for_the_upgrade_and_twice_is_once(bus: Bus, store: Store, newer_table: Any) -> None:
    agent = Agent(bus)
    rows = [Row("node_samples", {"ts": now_ms(), "cpu_pct": float(n)}) for n in range(3)]
    agent.send([*agent.samples(1), *rows])
    ingest(bus, store)
    (letter,) = listed(store)
    assert "node_samples is unknown" in letter["reason"]
    assert (letter["index"], letter["node"], letter["replayed"]) == (2, "n1", False)
    newer_table()
    for _ in range(2):
        assert dead.replay(bus, letter, now_ms()) == 3
        ingest(bus, store)
    got = store.rows(f"SELECT node, cluster, cpu_pct FROM {DATABASE}.node_samples ORDER BY cpu_pct")
    assert got == [{"node": "n1", "cluster": "c1", "cpu_pct": float(n)} for n in range(3)]
    (letter,) = listed(store)
    assert letter["replayed"] is True
    assert letter["payload"] != ""
    assert listed(store, replayed=False) == []
    assert store.rows(f"SELECT count() AS n FROM {DATABASE}.dead_letters")[0]["n"] == 2


def test_a_replay_that_fails_again_becomes_a_new_letter(bus: Bus, store: Store) -> None:
    agent = Agent(bus)
    agent.send([Row("device_samples", {"ts": now_ms(), "device": "zero"})])
    ingest(bus, store)
    (letter,) = listed(store)
    dead.replay(bus, letter, now_ms())
    ingest(bus, store)
    letters = listed(store, replayed=False)
    assert [other["topic"] for other in letters] == ["flightwatch.dead"]
    assert letters[0]["node"] == "n1"


def test_a_message_that_is_still_unreadable_says_so(bus: Bus, store: Store) -> None:
    Agent(bus).publish(b"rubbish of some length, forty bytes or so")
    ingest(bus, store)
    (letter,) = listed(store)
    with pytest.raises(Refused, match="still unreadable"):
        dead.replay(bus, letter, now_ms())


def test_a_letter_without_payload_is_read_from_the_bus(bus: Bus) -> None:
    message = encode(Batch(header(), Agent(bus).samples(3)))
    ack = bus.publish(PLACE.topic, "n1", message).result(120)
    letter = {"topic": PLACE.topic, "partition": ack.partition.number, "offset": ack.offset, "index": -1, "payload": "",
              "id": "x", "node": "n1", "cluster": "c1", "reason": "r", "ts": now_ms()}  # fmt: skip
    assert dead.replay(bus, letter, now_ms()) == 2
    with pytest.raises(Refused, match="no longer on the bus"):
        dead.replay(bus, letter | {"offset": 10**6}, now_ms())


def test_ids_are_checked_before_they_reach_sql() -> None:
    with pytest.raises(ConfigError, match="not the id"):
        letters_sql("x' OR 1=1 --")


def test_the_commands_list_show_and_replay(
    folder: Path, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLIGHTWATCH_CONFIG", raising=False)
    bus = open_bus(f"sqlite://{folder}/bus")
    setup_topics(bus)
    agent = Agent(bus)
    agent.send([Row("device_samples", {"ts": now_ms(), "device": "ze\x1b[31mro"})])
    agent.publish(b"rubbish of some length, forty bytes or so")
    ingest(bus, store)
    bus.close()
    store.close()
    where = ["--data-dir", str(folder)]
    assert main(["dead", "list", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("\x1b" not in line for line in lines)
    letter_id = next(word for word in lines[0].split() if word.startswith("flightwatch."))
    assert main(["dead", "list", "--format", "json", *where]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert shown[0]["id"] == letter_id
    assert main(["dead", "show", letter_id, *where]) == 0
    assert json.loads(capsys.readouterr().out)["payload"]["table"] == "device_samples"
    assert main(["dead", "replay", "--all", *where]) == 1
    out = capsys.readouterr().out
    assert "still unreadable" in out
    assert "1 letters with 1 rows sent" in out
    assert main(["dead", "show", "flightwatch.x/0/0/0", *where]) == 1
    assert main(["dead", "show", *where]) == 2
    assert main(["dead", "show", "'; DROP", *where]) == 2

"""A node's key through the whole installation: `agent enroll`, `up`, dead letters, rows."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flightwatch.core.ed25519 import signing_key
from tests.cli.test_up import Instance, flightwatch, start

STRANGER = signing_key(bytes(range(32))).public_key.hex()


def letters(instance: Instance) -> list[dict[str, object]]:
    done = flightwatch("dead", "list", "--data-dir", str(instance.folder), "--format", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def enroll(config: Path, *words: str) -> str:
    done = flightwatch("agent", "enroll", "--config", str(config), "--node", "test-node", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_key_of_another_node_gives_dead_letters_and_its_own_key_gives_rows(tmp_path: Path) -> None:
    folder, config = tmp_path / "data", tmp_path / "flightwatch.toml"
    config.write_text(f'[flightwatch]\ndata_dir = "{folder}"\n')
    # The node has a key, and its agent signs with none: everything it sends is a stranger's.
    assert "test-node: enrolled" in enroll(config, "--public-key", STRANGER)
    instance = start(folder)
    try:
        for _ in range(1200):
            if found := letters(instance):
                break
            time.sleep(0.25)
        assert {letter["index"] for letter in found} == {-1}
        assert all("test-node" in str(letter["reason"]) for letter in found), found
        assert instance.sql("SELECT count() AS n FROM flightwatch.node_samples") == [{"n": 0}]
        assert instance.stop() == 0

        # The agent's own key, made and registered on the node; restarted, it signs with it.
        assert "test-node: enrolled" in enroll(config)
        instance = start(folder)
        before = len(letters(instance))
        instance.wait_for("SELECT count() > 0 FROM flightwatch.node_samples")
        assert len(letters(instance)) == before
    finally:
        if instance.process.poll() is None:
            instance.stop()

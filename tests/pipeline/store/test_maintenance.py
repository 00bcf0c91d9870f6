from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.core.errors import ConfigError, Refused
from flightwatch.pipeline.store import maintenance
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import check, migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.store.blocks import insert

NOW = time.time_ns() // 1_000_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"chdb://{tmp_path / 'data' / 'store'}"


@pytest.fixture
def filled(url: str) -> Iterator[Store]:
    store = open_store(url, StoreSettings())
    migrate(store)
    rows = [{"ts": NOW + i, "node": f"n{i}", "device": 0, "temp_c": 40.0 + i} for i in range(3)]
    insert(store, "device_samples", *rows, token="first")
    yield store
    store.close()


def test_a_backup_comes_back_whole_with_rollups_tokens_and_views(filled: Store, url: str, tmp_path: Path) -> None:
    folder = maintenance.backup(filled, "one")
    assert folder == tmp_path / "data" / "store.backups" / "one"
    with pytest.raises(Refused, match="exists already"):
        maintenance.backup(filled, "one")
    with pytest.raises(Refused, match="holds rows"):
        maintenance.restore(filled, "one")
    filled.close()

    (tmp_path / "data" / "store").rename(tmp_path / "lost")
    fresh = open_store(url, StoreSettings())
    try:
        migrate(fresh)
        maintenance.restore(fresh, "one")
        assert check(fresh) == []
        assert migrate(fresh) == []
        newest = "SELECT node, temp_c FROM flightwatch.v_device_latest ORDER BY node"
        assert [row["temp_c"] for row in fresh.rows(newest)] == [40.0, 41.0, 42.0]
        assert maintenance.problems(fresh) == []
        insert(fresh, "device_samples", {"ts": NOW + 9, "node": "n0", "device": 0, "temp_c": 50.0})
        assert fresh.rows(newest)[0]["temp_c"] == 50.0
        assert maintenance.problems(fresh) == []
    finally:
        fresh.close()


def test_an_absent_backup_and_odd_names_are_refused(filled: Store) -> None:
    filled.command("TRUNCATE TABLE flightwatch.device_samples")
    with pytest.raises(Refused, match="no backup"):
        maintenance.restore(filled, "nothing")
    for name in ("../../etc", "", "a/b", "'; DROP", "-x"):
        with pytest.raises(ConfigError, match="not a name"):
            maintenance.backup(filled, name)


def test_a_damaged_part_is_found(filled: Store) -> None:
    folder = filled.folder
    assert folder is not None
    (path,) = (row["path"] for row in filled.rows(
        "SELECT path FROM system.parts WHERE database = 'flightwatch' AND table = 'device_samples' AND active"
    ))  # fmt: skip
    data = next(Path(path).glob("data.bin"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 0xFF
    data.write_bytes(content)
    found = maintenance.problems(filled)
    assert any(problem.startswith("device_samples: part") and "damaged" in problem for problem in found)


def test_sizes_count_rows_and_bytes(filled: Store) -> None:
    (size,) = [size for size in maintenance.sizes(filled) if size.table == "device_samples"]
    assert size.rows == 3
    assert size.parts == 1
    assert size.bytes_raw > 0
    assert size.bytes_on_disk > 0

"""What insert_block acknowledged is there after SIGKILL, in the raw table, the rollup and the newest rows."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings

_WRITER = """
import itertools, sys
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.store.blocks import insert
store = open_store(sys.argv[1], StoreSettings())
for number in itertools.count():
    rows = [{"ts": int(sys.argv[2]) + i, "node": "n", "device": i, "src_offset": number} for i in range(10)]
    insert(store, "device_samples", *rows, token=f"block-{number}")
    print(number, flush=True)
"""


def test_acknowledged_rows_survive_a_kill(tmp_path: Path) -> None:
    url, moment = f"chdb://{tmp_path / 'store'}", time.time_ns() // 1_000_000
    store = open_store(url, StoreSettings())
    migrate(store)
    store.close()
    acknowledged = -1
    for lines in (5, 12):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, url, str(moment)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(lines):
            acknowledged = max(acknowledged, int(writer.stdout.readline()))
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *(int(line) for line in writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
    store = open_store(url, StoreSettings())
    try:
        (raw,) = store.rows(
            "SELECT count() AS n, uniqExact(src_offset) AS blocks, max(src_offset) AS last"
            " FROM flightwatch.device_samples"
        )
        # The second writer repeats the first one's blocks: its tokens are still known. One block more may be there.
        assert raw["blocks"] in (acknowledged + 1, acknowledged + 2)
        assert raw["n"] == 10 * raw["blocks"]
        (rolled,) = store.rows("SELECT sum(n) AS n FROM flightwatch.device_1m")
        assert rolled["n"] in (raw["n"], raw["n"] - 10)
        assert len(store.rows("SELECT 1 AS x FROM flightwatch.v_device_latest")) == 10
    finally:
        store.close()

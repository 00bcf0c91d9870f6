"""Start the demo as a user would, check that rows arrive and the page shows them, stop it. `make demo-check`.

Exit code 0 when everything is right; otherwise one line per thing that is wrong and exit code 1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

READY_SECONDS = 180
ROWS_SECONDS = 60
STOP_SECONDS = 60
#: Tables that any Linux machine fills.
TABLES = ("node_samples", "self_metrics", "config_facts")


def main() -> int:
    """Run the check; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="flightwatch-demo-") as folder:
        command = [sys.executable, "-m", "flightwatch.cli", "up", "--data-dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            problems = _check(process, folder)
        finally:
            children = _children(process.pid)
            process.send_signal(signal.SIGTERM)
            try:
                code: int | None = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                code = None
        if code != 0:
            problems.append(f"after SIGTERM it ended with {code}, not 0 within {STOP_SECONDS} s")
        problems += [f"process {pid} outlived it" for pid in children if Path(f"/proc/{pid}").exists()]
    for problem in problems:
        print(f"demo-check: {problem}", file=sys.stderr)
    if not problems:
        print("demo-check: rows, page, SQL and clean stop are right")
    return 1 if problems else 0


def _check(process: subprocess.Popen[str], folder: str) -> list[str]:
    assert process.stdout is not None
    url = ""
    started = time.monotonic()
    # Reading waits for ever on a start that hangs; its end ends the reading.
    limit = threading.Timer(READY_SECONDS, process.terminate)
    limit.start()
    for line in process.stdout:
        if line.startswith("READY "):
            url = line.split()[1]
            break
    limit.cancel()
    if not url:
        return [f"it ended without READY within {READY_SECONDS} s (exit code {process.wait()})"]
    print(f"demo-check: {url} ready after {time.monotonic() - started:.1f} s")
    counts = _wait_for_rows(folder)
    problems = [f"no row in {table}" for table in TABLES if not counts.get(table)]
    return problems + _page_problems(url)


def _wait_for_rows(folder: str) -> dict[str, int]:
    query = " UNION ALL ".join(f"SELECT '{name}' AS name, count() AS rows FROM flightwatch.{name}" for name in TABLES)
    counts: dict[str, int] = {}
    deadline = time.monotonic() + ROWS_SECONDS
    while time.monotonic() < deadline:
        done = subprocess.run(
            [sys.executable, "-m", "flightwatch.cli", "sql", "--data-dir", folder, "--format", "json", query],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            counts = {row["name"]: row["rows"] for row in map(json.loads, done.stdout.splitlines())}
            if all(counts.values()):
                break
        time.sleep(1)
    print(f"demo-check: rows by SQL {counts}")
    return counts


def _page_problems(url: str) -> list[str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        if "Flightwatch" not in answer.read().decode():
            return ["the page does not name Flightwatch"]
    rows = _readings(url)
    print(f"demo-check: the page's table shows {len(rows)} readings")
    if not any(row["source"] == "host" and row["value"] != "unknown" for row in rows):
        return ["the page shows no reading of this host"]
    return []


def _readings(url: str) -> list[dict[str, Any]]:
    """Ask the page's own callback for the table, as the browser does."""
    with urllib.request.urlopen(f"{url}/_dash-dependencies", timeout=10) as answer:
        wanted = next(one for one in json.load(answer) if "readings.rowData" in one["output"])
    node = os.environ.get("FLIGHTWATCH_FLIGHTWATCH_NODE") or os.uname().nodename
    view = {"path": f"/nodes/{node}", "params": {}, "captured": {"name": node}}
    values: dict[str, Any] = {"beat": 1, "view": view}
    outputs = [
        dict(zip(("id", "property"), part.rsplit(".", 1), strict=True))
        for part in wanted["output"].strip(".").split("...")
    ]
    body = {
        "output": wanted["output"],
        "outputs": outputs,
        "inputs": [one | {"value": values[one["id"]]} for one in wanted["inputs"]],
        "changedPropIds": ["view.data"],
        "state": [],
    }
    request = urllib.request.Request(
        f"{url}/_dash-update-component", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        rows: list[dict[str, Any]] = json.load(answer)["response"]["readings"]["rowData"]
    return rows


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main())

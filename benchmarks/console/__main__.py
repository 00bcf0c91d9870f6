"""How fast the console is: `make bench-console` prints the figures that docs/console.md quotes.

A store of --devices x --hours is filled first (two minutes for 10,000 x 2). The browser is Debian's Chromium without a
GPU on this machine, so the browser, the server and the store share its cores. CPU of this process is the server's, the
store's and the script's that drives the browser: it tells what a callback costs when other programs share the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from playwright.sync_api import BrowserContext, Page, Request, sync_playwright

from benchmarks.console.fleet import Console, console

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-precise-memory-info",
]
CALLBACK = "_dash-update-component"
#: What a person asks on the page SQL.
QUERY = """SELECT node, max(temp_c) AS hottest FROM flightwatch.v_device_latest
GROUP BY node ORDER BY hottest DESC LIMIT 50"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--folder", help="folder of the store; kept (default: a temporary one)")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--heap-seconds", type=float, default=120.0, help="length of the heap run; an hour is 3600")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        with console(folder, arguments.devices, arguments.hours) as served:
            ready_s = time.monotonic() - started
            busy = os.getloadavg()[0]
            print(
                f"{arguments.devices:,} devices, {arguments.hours:g} h; store ready after {ready_s:.0f} s; "
                f"load of the machine {busy:.1f}"
            )
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
                bodies = _pages(browser.new_context(viewport={"width": 1440, "height": 900}), served)
                _heap(browser.new_context(), served, arguments.heap_seconds)
                browser.close()
            _clients(served, bodies, arguments.clients)
    return 0


def _first(context: BrowserContext, served: Console) -> None:
    """Print first paint and usable fleet, with a cold and a warm browser cache."""
    for name in ("cold", "warm", "warm"):
        page = context.new_page()
        page.goto(served.url)
        page.wait_for_selector("#fleet-map[data-draw-ms]", timeout=60_000)
        usable = page.evaluate("performance.now()")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        draw = float(page.locator("#fleet-map").get_attribute("data-draw-ms") or "nan")
        cells = page.locator("#fleet-map").get_attribute("data-cells")
        print(
            f"fleet, {name} cache: first paint {paint:.0f} ms, usable {usable:.0f} ms, {cells} drawn in {draw:.1f} ms"
        )
        page.close()


def _pages(context: BrowserContext, served: Console) -> list[tuple[str, dict[str, Any]]]:
    """Print callback times of every page with one user; return the bodies of the fleet page's requests."""
    _first(context, served)
    paths = {
        "fleet": "/",
        "fleet, slowness": "/?metric=slowness",
        "fleet, ECC": "/?metric=ecc_per_h",
        "node": f"/nodes/{served.node}",
        "jobs": "/jobs",
        "job": f"/jobs/{served.job}",
        "ranks": f"/ranks?job={served.job}",
        "profiler": f"/profiler?job={served.job}",
        "incidents": "/incidents",
        "incident": f"/incidents/{served.incident}",
        "SQL": "/sql?query=" + quote(QUERY),
        "admin": "/admin",
        "setup": "/setup",
    }
    everything: list[float] = []
    kept: list[tuple[str, dict[str, Any]]] = []
    for name, path in paths.items():
        took: list[float] = []
        page = context.new_page()
        requests = _requests_of(page)
        cpu_s = time.process_time()
        for _ in range(4):
            page.goto(served.url + path)
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(1800)
        requests = [request for request in requests if CALLBACK in request.url]
        for request in requests:
            timing = request.timing
            took.append(timing["responseEnd"] - timing["requestStart"])
        if name == "fleet":
            kept = [(one.url.partition("?")[0], dict(one.post_data_json or {})) for one in requests[-6:]]
        page.close()
        cpu_ms = (time.process_time() - cpu_s) * 1000 / max(1, len(took))
        everything += took
        print(
            f"{name:16} {len(took):3} callbacks, median {statistics.median(took):5.0f} ms, P95 {_p95(took):5.0f} ms, "
            f"CPU of this process {cpu_ms:4.0f} ms each"
        )
    print(f"one user, all pages: {len(everything)} callbacks, P95 {_p95(everything):.0f} ms")
    return kept


def _requests_of(page: Page) -> list[Request]:
    """Return a list that fills with the page's finished requests."""
    found: list[Request] = []
    page.on("requestfinished", lambda request: found.append(request))
    return found


def _heap(context: BrowserContext, served: Console, seconds: float) -> None:
    """Print how the browser's heap grows while the fleet refreshes every two seconds."""
    page = context.new_page()
    page.goto(served.url)
    page.wait_for_selector("#fleet-map[data-draw-ms]", timeout=60_000)
    page.wait_for_timeout(10_000)
    before = _heap_bytes(page)
    beats = max(1, round(seconds / 2))
    for beat in range(beats):
        page.evaluate("n => window.dash_clientside.set_props('beat', {data: 100000 + n})", beat)
        page.wait_for_timeout(2000)
    after = _heap_bytes(page)
    grown = (after - before) / 1e6
    print(
        f"heap after {beats} refreshes in {seconds:.0f} s: {before / 1e6:.1f} -> {after / 1e6:.1f} MB ({grown:+.1f} MB)"
    )
    page.close()


def _heap_bytes(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return float(used)


def _clients(served: Console, bodies: Sequence[tuple[str, dict[str, Any]]], clients: int) -> None:
    """Print callback times while many clients refresh the fleet page every two seconds."""
    took: list[float] = []
    failed: list[int] = []
    lock = threading.Lock()
    until = time.monotonic() + 20.0

    def run(number: int) -> None:
        with httpx.Client(timeout=60) as client:
            time.sleep(2.0 * number / clients)
            while time.monotonic() < until:
                begin = time.monotonic()
                for url, body in bodies:
                    started = time.monotonic()
                    answer = client.post(url, json=body)
                    with lock:
                        took.append((time.monotonic() - started) * 1000)
                        if answer.status_code not in (200, 204):
                            failed.append(answer.status_code)
                time.sleep(max(0.0, 2.0 - (time.monotonic() - begin)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = len(took) / 20.0
    print(
        f"{clients} clients: {len(took)} callbacks ({rate:.0f}/s), median {statistics.median(took):.0f} ms, "
        f"P95 {_p95(took):.0f} ms, {len(failed)} failed"
    )


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1] if len(values) > 1 else float("nan")


if __name__ == "__main__":
    raise SystemExit(main())

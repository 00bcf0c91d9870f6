"""Draw the pictures of the real pages for README: starts the demo, lets it run, takes screenshots.

make pictures
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parent / "pictures"
#: Until the demo's faults are incidents.
DEMO_SECONDS = 300
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
#: Name of the picture, path, what must be there, language, theme, size of the window.
SHOTS = (
    ("fleet", "/?range=15m", "#fleet-map[data-draw-ms]", "en", "dark", (1440, 900)),
    ("fleet_zh", "/?range=15m&metric=findings", "#fleet-map[data-draw-ms]", "zh", "light", (1440, 900)),
    ("node", "/nodes/sim-n0003?device=5&range=15m", "#node-series .scatterlayer .trace", "en", "dark", (1440, 1000)),
    ("job", "/jobs/sim-pretrain?range=15m", "#job-heat[data-draw-ms]", "en", "dark", (1440, 1000)),
    ("ranks", "/ranks?job=sim-pretrain&range=15m", "#ranks-heat[data-draw-ms]", "en", "light", (1440, 1000)),
    ("sql", "/sql?chart=bar&query={query}", "#sql-grid .ag-center-cols-container .ag-row", "en", "dark", (1440, 900)),
    ("incidents", "/incidents", "#incidents-grid .ag-center-cols-container a", "en", "dark", (1440, 800)),
    ("incident", "/incidents/{incident}", "#incident-evidence .scatterlayer .trace", "en", "dark", (1440, 1250)),
    ("incident_phone_zh", "/incidents/{incident}", "#incident-acts .fw-acts", "zh", "light", (420, 1100)),
    ("admin", "/admin", "#admin-detectors table", "en", "light", (1440, 1000)),
)
QUERY = (
    "SELECT node, max(temp_c) AS hottest_c, round(avg(power_w)) AS mean_w FROM flightwatch.v_device_latest"
    " GROUP BY node ORDER BY hottest_c DESC LIMIT 20"
)


def main() -> int:
    """Write docs/pictures/*.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="take them from a running console instead of starting the demo")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if arguments.url:
        draw(arguments.url)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flightwatch.cli", "up", "--data-dir", folder, "--demo"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = next(line.split()[1] for line in process.stdout if line.startswith("READY "))
            time.sleep(DEMO_SECONDS)
            draw(url)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(120)
    return code


def draw(url: str) -> None:
    """Take all pictures from a running console with the demo's faults."""
    with urllib.request.urlopen(f"{url}/api/v1/incidents?job=sim-pretrain&kind=slow", timeout=30) as answer:
        incident = json.load(answer)["items"][0]["id"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for name, path, ready, language, theme, size in SHOTS:
            _shot(
                browser,
                url + path.format(query=QUERY, incident=incident),
                ready,
                language,
                theme,
                size,
                FOLDER / f"{name}.png",
            )
        browser.close()


def _shot(
    browser: Browser, url: str, ready: str, language: str, theme: str, size: tuple[int, int], target: Path
) -> None:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    origin = "/".join(url.split("/")[:3])
    context.add_cookies(
        [{"name": "fw_lang", "value": language, "url": origin}, {"name": "fw_theme", "value": theme, "url": origin}]
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(url)
    page.wait_for_selector(ready, state="attached")
    page.wait_for_timeout(6000)
    page.screenshot(path=str(target))
    context.close()


if __name__ == "__main__":
    sys.exit(main())

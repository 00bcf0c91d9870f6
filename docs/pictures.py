"""Draw the pictures of the real pages for README: starts an instance, lets it collect, takes screenshots.

make pictures
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent / "pictures"
COLLECT_SECONDS = 90
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]


def main() -> int:
    """Write docs/pictures/*.png."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flightwatch.cli", "up", "--data-dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[1]
            time.sleep(COLLECT_SECONDS)
            _draw(url)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    return code


def _draw(url: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(url)
        page.get_by_text("5 min", exact=True).click()
        page.get_by_text("load average over a minute").wait_for()
        page.wait_for_timeout(6000)
        page.screenshot(path=str(FOLDER / "machine.png"))
        browser.close()


if __name__ == "__main__":
    sys.exit(main())

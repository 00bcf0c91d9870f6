"""Every page in Chromium: real data, links that hold the state, languages, themes, keyboard, nothing from outside."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from flightwatch.dashboard.i18n import LANGUAGES
from flightwatch.pipeline.control.audit import AuditLog
from flightwatch.pipeline.profiles.records import Profiles
from tests.dashboard.page_kit import CHROMIUM, INCIDENT, JOB, NODE, Served, Watched, set_cookies

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="chromium is not installed"),
]

QUERY = "SELECT%20node%2C%20device%2C%20temp_c%20FROM%20flightwatch.v_device_latest%20LIMIT%205"
#: Path and something that only real data brings.
PAGES = {
    "/": "#fleet-map[data-cells='64']",
    f"/nodes/{NODE}?device=5": "#node-series .scatterlayer .trace",
    "/jobs": "#jobs-grid .ag-center-cols-container a",
    f"/jobs/{JOB}": "#job-heat[data-draw-ms]",
    f"/ranks?job={JOB}": "#ranks-heat[data-draw-ms]",
    f"/profiler?job={JOB}": "#profiler-suggested .fw-chip",
    f"/sql?query={QUERY}": "#sql-grid .ag-center-cols-container .ag-row",
    "/incidents": "#incidents-grid .ag-center-cols-container a",
    f"/incidents/{INCIDENT}": "#incident-evidence .scatterlayer .trace",
    "/admin": "#admin-detectors table",
    "/setup": ".fw-step.done",
}
IDS = [path.partition("?")[0] for path in PAGES]


@pytest.mark.parametrize(("path", "real"), PAGES.items(), ids=IDS)
def test_a_page_shows_real_data_and_nothing_goes_wrong(watched: Watched, path: str, real: str) -> None:
    page = watched.open(path, real)
    assert page.title().endswith("Flightwatch")
    assert watched.wrong == []


@pytest.mark.parametrize(("path", "real"), PAGES.items(), ids=IDS)
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_no_serious_finding_of_axe(watched: Watched, path: str, real: str, theme: str) -> None:
    set_cookies(watched.context, watched.url, "en", theme)
    page = watched.open(path, real)
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    serious = [
        (one["id"], [node["html"][:160] for node in one["nodes"][:3]])
        for one in found.response["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.parametrize(("path", "real"), PAGES.items(), ids=IDS)
def test_no_english_is_left_on_a_chinese_page(watched: Watched, path: str, real: str) -> None:
    set_cookies(watched.context, watched.url, "zh", "dark")
    page = watched.open(path, real)
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    texts = page.evaluate(
        """() => {
          const found = [];
          const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          while (walk.nextNode()) {
            const holder = walk.currentNode.parentElement;
            const skipped = 'script, style, [data-raw], .fw-mono, .cm-editor, .ag-cell, .ag-header-cell-text, kbd';
            if (!holder.closest(skipped))
              found.push(walk.currentNode.textContent.trim());
          }
          for (const element of document.querySelectorAll('[title], [aria-label], [placeholder]'))
            if (!element.closest('[data-raw], .cm-editor, .ag-root-wrapper'))
              for (const name of ['title', 'aria-label', 'placeholder']) found.push(element.getAttribute(name) || '');
          return found.filter(Boolean);
        }"""
    )
    english = {LANGUAGES["en"][key] for key, word in LANGUAGES["zh"].items() if LANGUAGES["en"][key] != word}
    assert [text for text in texts if text in english] == []
    # Two English words in a row are a sentence that was never translated (names and commands are marked as raw).
    assert [
        text for text in texts if re.search(r"\b[A-Za-z]{3,} [a-z]{3,}\b", text) and "flightwatch" not in text
    ] == []


def test_opening_every_page_changes_nothing(watched: Watched, served: Served) -> None:
    audit, profiles = AuditLog(served.control), Profiles(served.control)
    before = ([entry for entry in audit.page(limit=500) if entry.action != "sql"], profiles.newest(500))
    for path, real in PAGES.items():
        watched.open(path, real)
    after = audit.page(limit=500)
    assert ([entry for entry in after if entry.action != "sql"], profiles.newest(500)) == before
    # The query in the address of the SQL page is a read, and it is written down.
    assert any(entry.action == "sql" for entry in after)


def test_a_state_is_in_the_address_and_back_works(watched: Watched) -> None:
    page = watched.open("/", "#fleet-map[data-draw-ms]")
    page.get_by_role("button", name="Power", exact=True).click()
    expect(page).to_have_url(re.compile(r"metric=power_w"))
    page.get_by_label("Grouped by").select_option("leaf_switch")
    page.get_by_label("Time range", exact=True).select_option("6h")
    expect(page).to_have_url(re.compile(r"group=leaf_switch&metric=power_w&range=6h&refresh=off"))
    watched.settle()
    expect(page.locator("#fleet-legend")).to_contain_text("W")
    page.locator("#fw-nav").get_by_text("Jobs").click()
    page.wait_for_selector("#jobs-grid .ag-center-cols-container a")
    # The time range goes along, the map's own state does not.
    assert page.url.endswith("/jobs?range=6h&refresh=off")
    page.get_by_role("link", name=JOB).click()
    page.wait_for_selector("#job-heat[data-draw-ms]")
    page.go_back()
    page.wait_for_selector("#jobs-grid .ag-center-cols-container a")
    page.go_back()
    page.wait_for_selector("#fleet-map[data-draw-ms]")
    expect(page.get_by_role("button", name="Power", exact=True)).to_have_attribute("aria-pressed", "true")
    assert page.get_by_label("Grouped by").input_value() == "leaf_switch"
    assert watched.wrong == []


def test_the_keyboard_reaches_everything(watched: Watched) -> None:
    page = watched.open("/", "#fleet-map[data-draw-ms]")
    page.keyboard.press("?")
    expect(page.locator("#fw-help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#fw-help")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("n0001")
    expect(page).to_have_url(re.compile("q=n0001"))
    page.keyboard.press("Escape")
    page.locator("#fleet-map canvas").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("#fleet-map [aria-live]")).to_contain_text("accelerator 2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#node-series .scatterlayer .trace")
    assert "device=2" in page.url
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_selector("#jobs-grid")
    assert watched.wrong == []


def test_theme_and_language_switch(watched: Watched) -> None:
    page = watched.open("/setup", ".fw-step.done")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="中文").click()
    page.wait_for_selector("h1:has-text('接入')")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="EN", exact=True).click()
    page.wait_for_selector("h1:has-text('Setup')")


def test_a_profile_is_read_and_compared(watched: Watched, served: Served) -> None:
    page = watched.open(f"/profiler?job={JOB}&id={served.profile}&rank=5&peer=4", "#profiler-flame[data-frames]")
    row = page.locator("#profiler-changed tr", has_text="gemm_bf16")
    expect(row).to_contain_text("1.50 ×")
    page.get_by_label("Frame…").fill("gemm")
    expect(page).to_have_url(re.compile("q=gemm"))
    link = page.get_by_text("Timeline of all ranks")
    with watched.context.expect_page() as opened:
        link.click()
    timeline = opened.value
    timeline.wait_for_function("() => document.title.includes('Perfetto')")
    assert timeline.url.startswith(served.url + "/perfetto/")


def test_a_profile_starts_with_a_click_and_is_written_down(watched: Watched, served: Served) -> None:
    page = watched.open(f"/profiler?job={JOB}", "#profiler-suggested .fw-chip")
    page.locator("#profiler-suggested .fw-chip").first.click()
    expect(page).to_have_url(re.compile(r"ranks=5,"))
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#profiler-said a")).to_be_visible()
    newest = Profiles(served.control).newest(1)[0]
    assert (newest["job"], newest["state"], newest["ranks"][0]["state"]) == (JOB, "requested", "requested")
    assert 5 in [row["rank"] for row in newest["ranks"]]
    written = AuditLog(served.control).page(limit=20, action="profile.start")
    assert [entry.target for entry in written] == [newest["id"]]


def test_sql_runs_refuses_draws_and_downloads(watched: Watched, tmp_path: Path) -> None:
    page = watched.open("/sql", ".cm-editor")
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.type("SELECT number AS n, number * 2 AS twice FROM numbers(7)")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#sql-note")).to_have_text("7 rows")
    expect(page).to_have_url(re.compile("query=SELECT"))
    page.get_by_text("bars", exact=True).click()
    page.wait_for_selector("#sql-result .barlayer .point", state="attached")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert download.value.path().read_text().splitlines()[:2] == ['"n","twice"', "0,0"]
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.type("SELECT * FROM file('/etc/passwd')")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#sql-failure")).to_contain_text("not allowed")
    assert watched.wrong == []


def test_a_fixed_time_range_pauses_and_is_shown(watched: Watched) -> None:
    page = watched.open("/?from=2026-01-01T00:00&to=2026-01-01T01:00", "#fleet-map[data-draw-ms]")
    assert page.get_by_label("Time range", exact=True).input_value() == "custom"
    expect(page.locator("html")).to_have_attribute("data-live", "paused")


def test_search_finds_nodes_and_jobs(watched: Watched) -> None:
    page = watched.open("/setup", ".fw-step.done")
    page.locator("#fw-search").fill("pretrain")
    page.locator("#fw-found a").click()
    page.wait_for_selector("#job-heat[data-draw-ms]")
    assert f"/jobs/{JOB}?" in page.url


def test_a_phone_needs_no_sideways_scrolling(browser: Browser, served: Served) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    set_cookies(context, served.url, "en", "dark")
    watched = Watched(context, served.url)
    for path, real in PAGES.items():
        page = watched.open(path, real)
        assert page.evaluate("document.documentElement.scrollWidth") <= 392, path
    page.get_by_role("button", name="Menu").click()
    expect(page.locator("#fw-nav").get_by_text("Jobs")).to_be_visible()
    context.close()


def test_a_drag_over_a_chart_chooses_the_time_range_and_back_takes_it_away(watched: Watched) -> None:
    page = watched.open(f"/nodes/{NODE}?device=5", "#node-series .scatterlayer .trace")
    box = page.locator("#node-series .nsewdrag").first.bounding_box()
    assert box is not None
    before = page.url
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.6, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, y, steps=4)
    expect(page.locator("#fw-brush")).to_be_visible()
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d&refresh=off&to=\d{4}-"))
    expect(page.get_by_label("Time range", exact=True)).to_have_value("custom")
    assert page.locator("#fw-brush").count() == 0
    watched.settle()
    # A click is no drag.
    chosen = page.url
    page.mouse.click(box["x"] + box["width"] * 0.5, y)
    assert page.url == chosen
    page.go_back()
    page.wait_for_selector("#node-series .scatterlayer .trace")
    assert page.url == before
    assert watched.wrong == []


def test_a_flame_graph_can_be_taken_away(watched: Watched, served: Served) -> None:
    page = watched.open(f"/profiler?job={JOB}&id={served.profile}&rank=5", "#profiler-flame[data-frames]")
    with page.expect_download() as download:
        page.get_by_text("Speedscope").click()
    file = json.loads(download.value.path().read_text())
    names = [frame["name"] for frame in file["shared"]["frames"]]
    assert download.value.suggested_filename == f"{served.profile}-rank5.speedscope.json"
    assert {"rank 5", "gemm_bf16", "aten::linear"} <= set(names)
    assert file["profiles"][0]["unit"] == "microseconds"
    assert sum(file["profiles"][0]["weights"]) == file["profiles"][0]["endValue"] > 0
    with page.expect_download() as download:
        page.get_by_text("Folded stacks").click()
    lines = download.value.path().read_text().splitlines()
    assert any(line.startswith("rank 5;device;gemm_bf16 ") for line in lines)
    answer = page.request.get(f"{served.url}/flames/{served.profile}/77.speedscope.json")
    assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "words"), [("/nodes/sim-n000x", "Nothing was ever received"), ("/jobs/sim-pretran", "No job of this name")]
)
def test_what_nobody_knows_is_said_with_names_that_are_alike(watched: Watched, path: str, words: str) -> None:
    page = watched.open(path, ".fw-absent")
    expect(page.locator(".fw-absent h1")).to_contain_text(words)
    assert page.locator(".fw-panel").count() == 0
    page.locator(".fw-absent p a").first.click()
    page.wait_for_selector(".fw-panel")
    assert watched.wrong == []


def test_completions_go_when_the_query_runs(watched: Watched) -> None:
    page = watched.open("/sql", ".cm-editor")
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.type("SELECT co")
    popup = page.locator(".cm-tooltip-autocomplete")
    expect(popup).to_be_visible()
    page.keyboard.press("Control+Enter")
    expect(popup).to_be_hidden()
    page.keyboard.type("u")
    expect(popup).to_be_visible()
    page.locator("h1").click()
    expect(popup).to_be_hidden()


@pytest.mark.parametrize("path", ["/incidents", f"/incidents/{INCIDENT}"])
def test_the_pages_for_the_night_fit_a_phone_and_pass_axe_there(browser: Browser, served: Served, path: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    set_cookies(context, served.url, "en", "dark")
    watched = Watched(context, served.url)
    page = watched.open(path, "#incidents-cards a" if path == "/incidents" else "#incident-acts .fw-acts")
    assert page.evaluate("document.documentElement.scrollWidth") <= 392
    small = page.evaluate(
        """() => [...document.querySelectorAll('#incident-acts .fw-button, #incidents-cards a')]
          .filter(one => one.getBoundingClientRect().height < 24).map(one => one.textContent)"""
    )
    assert small == [], "too small for a thumb"
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    assert [one["id"] for one in found.response["violations"] if one["impact"] in ("serious", "critical")] == []
    context.close()

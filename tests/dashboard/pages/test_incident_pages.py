"""What people do on the pages about incidents: every change goes through the API, by those who may."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect

from flightwatch.core.clock import SystemClock
from flightwatch.core.incident import IncidentState
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.app import create_app
from flightwatch.dashboard.serve import HttpServer, bind_port
from flightwatch.dashboard.services import Services
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.pipeline.control.audit import AuditLog
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.detection import DetectorSettings
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.schema_incidents import INCIDENTS
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.store.client import Store
from tests.dashboard.page_kit import CHROMIUM, INCIDENT, JOB, NODE, Watched, add_incidents, set_cookies, status_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="chromium is not installed"),
]
HEADS = {"operator": "ann", "viewer": "vic"}


class Desk:
    """A console behind a proxy that says who asks."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.control: Control = open_control(f"sqlite:///{folder / 'control.sqlite'}", ControlSettings())
        add_incidents(self.control)
        settings = AccessSettings(
            proxy_addresses=("127.0.0.1",), proxy_user_header="X-Forwarded-User",
            proxy_groups_header="X-Forwarded-Groups",
            viewer_groups=("viewer", "blue=blue"), operator_groups=("operator",),
            admin_groups=("admin",), writes_per_minute=100_000, requests_per_second=100_000,
        )  # fmt: skip
        access = AccessControl(settings, self.control, loopback_only=True)
        services = Services(
            store, status_of(store), lambda: None, self.control, access, actions=ActionSettings(mode="dry_run")
        )
        bound = bind_port("127.0.0.1", 23_600, trust_network=False, login=True)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        self.server = HttpServer("console", create_app(services, loopback_only=True), bound)
        self.server.start()
        self.incidents, self.audit = IncidentRecords(self.control), AuditLog(self.control)

    def close(self) -> None:
        self.server.stop()
        self.control.close()

    def again(self) -> None:
        """Open the incident again, as it was."""
        with self.control.transaction() as connection:
            values = {"state": "open", "acknowledged_by": None, "assignee": None, "closed_at_ms": None}
            connection.execute(sa.update(INCIDENTS).where(INCIDENTS.c.id == INCIDENT).values(values))


@pytest.fixture(scope="module")
def desk(page_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    made = Desk(page_store, tmp_path_factory.mktemp("desk"))
    yield made
    made.close()


def _as(browser: Browser, desk: Desk, role: str) -> Watched:
    headers = {"X-Forwarded-User": f"{role}@example.com", "X-Forwarded-Groups": role}
    context = browser.new_context(viewport={"width": 1440, "height": 900}, extra_http_headers=headers)
    set_cookies(context, desk.url, "en", "dark")
    return Watched(context, desk.url)


@pytest.fixture
def operator(browser: Browser, desk: Desk) -> Iterator[Watched]:
    desk.again()
    watched = _as(browser, desk, "operator")
    yield watched
    watched.context.close()


@pytest.fixture
def viewer(browser: Browser, desk: Desk) -> Iterator[Watched]:
    desk.again()
    watched = _as(browser, desk, "viewer")
    yield watched
    watched.context.close()


def _opened(watched: Watched) -> Page:
    return watched.open(f"/incidents/{INCIDENT}", "#incident-acts .fw-acts")


def test_the_page_answers_within_a_minute_what_where_how_sure_and_what_it_costs(operator: Watched) -> None:
    page = _opened(operator)
    text = page.locator("#fw-main").inner_text()
    for words in (
        "P2",
        NODE,
        "GPU 5",
        "90 % sure",
        "computes 30.0 % longer",
        "12.5 GPU-hours",
        "JOB SLOWED",
        "flightwatch incident show",
    ):
        assert words in text, words
    assert "a slow target holds the job back" in text, "why one finding follows another"
    assert "Overheating: looked for in" in text
    assert "RDMA: looked for in" in text or "Nobody measured: " in text
    assert "It was slow before" in text, "related incidents"


def test_acknowledge_with_its_key_and_it_is_written_down(operator: Watched, desk: Desk) -> None:
    page = _opened(operator)
    page.keyboard.press("a")
    expect(page.locator("#incident-head .fw-state")).to_have_text("acknowledged")
    now = desk.incidents.get(INCIDENT)
    assert (now.state, now.acknowledged_by) == (IncidentState.ACKNOWLEDGED, "operator@example.com")
    assert any(one.action.startswith("incident.ack") and one.ok for one in desk.audit.page(limit=20))
    assert operator.wrong == []


def test_a_note_an_assignment_and_a_resolution(operator: Watched, desk: Desk) -> None:
    page = _opened(operator)
    page.locator("#incident-acts summary", has_text="Note").click()
    page.locator("#incident-acts details[open] textarea").fill("fan 3 stands still")
    page.locator("#incident-acts details[open] button").click()
    expect(page.locator("#incident-notes")).to_contain_text("fan 3 stands still")
    page.locator("#incident-acts summary", has_text="Assign").click()
    page.locator("#incident-acts details[open] button", has_text="Assign to me").click()
    expect(page.locator("#incident-head")).to_contain_text("assigned to")
    page.locator("#incident-acts summary", has_text="Resolve").click()
    page.locator("#incident-acts details[open] select[name=state]").select_option("false_positive")
    page.locator("#incident-acts details[open] button", has_text="Resolve").click()
    expect(page.locator("#incident-head .fw-state")).to_have_text("false positive")
    assert desk.incidents.get(INCIDENT).state is IncidentState.FALSE_POSITIVE


def test_a_silence_has_an_end_and_is_listed(operator: Watched, desk: Desk) -> None:
    page = _opened(operator)
    page.locator("#incident-acts summary", has_text="Silence").click()
    form = page.locator("#incident-acts details[open] form")
    assert form.count() == 1, "one form, not one for each thing that can be silenced"
    form.locator("select[name=matchers]").select_option(label=f"everything on {NODE}")
    form.locator("input[name=reason]").fill("cooling is being repaired")
    form.locator("select[name=expires_at]").select_option("12")
    form.locator("button").click()
    page.wait_for_selector("#fw-toast.shown")
    made = desk.incidents.silences()[0]
    assert (made.matchers, made.reason) == ({"node": NODE}, "cooling is being repaired")
    assert abs(made.expires_at_ms - made.created_at_ms - 12 * 3_600_000) < 120_000
    listed = operator.open("/incidents", "#incidents-silences")
    expect(listed.locator("#incidents-silences")).to_contain_text("cooling is being repaired")
    listed.locator("#incidents-silences button", has_text="End").click()
    expect(listed.locator("#incidents-silences")).to_contain_text("Nothing is silenced")


def test_a_silence_of_many_is_filled_in_and_not_written_as_json(operator: Watched, desk: Desk) -> None:
    page = operator.open("/incidents", "#incidents-grid .ag-center-cols-container a")
    page.locator("summary", has_text="Silence").click()
    form = page.locator("details[open] form[data-post='/api/v1/silences']")
    form.locator("select[name=kind]").select_option("overheat")
    form.locator("input[name=rack]").fill("r0*")
    form.locator("input[name=reason]").fill("the pump is exchanged")
    form.locator("button").click()
    page.wait_for_selector("#fw-toast.shown")
    made = next(one for one in desk.incidents.silences() if one.reason == "the pump is exchanged")
    assert made.matchers == {"kind": "overheat", "rack": "r0*"}


def test_a_drain_needs_the_typed_name_and_shows_both_costs(operator: Watched, desk: Desk) -> None:
    page = _opened(operator)
    page.locator("#incident-acts summary", has_text="Drain").click()
    form = page.locator("#incident-acts details[open] form")
    assert "Going on loses 12.5" in form.inner_text()
    form.locator("input[name=confirm]").fill("another")
    form.locator("button").click()
    expect(form.locator("[role=alert]")).to_contain_text(f"Type {NODE} exactly")
    form.locator("input[name=confirm]").fill(NODE)
    form.locator("button").click()
    expect(page.locator("#incident-actions")).to_contain_text("approved")
    assert any(one.action == "action.approve" and one.ok for one in desk.audit.page(limit=20))


def test_many_are_acknowledged_at_once_and_a_view_is_saved(operator: Watched, desk: Desk) -> None:
    page = operator.open("/incidents?state=all", "#incidents-grid .ag-center-cols-container a")
    page.locator("#incidents-grid .ag-center-cols-container .ag-row", has_text="rank 5").first.wait_for()
    page.locator("#incidents-grid input[type=checkbox]").nth(1).check()
    expect(page.locator("#incidents-selected")).to_have_text("1 selected")
    page.locator("button", has_text=re.compile("^Acknowledge$")).click()
    page.wait_for_selector("#fw-toast.shown")
    page.locator("summary", has_text="Save view").click()
    page.locator("details[open] input[name=name]").fill("my open ones")
    page.locator("details[open] button", has_text="Save view").click()
    expect(page.locator("#incidents-views")).to_contain_text("my open ones")
    assert desk.incidents.get(INCIDENT).state is IncidentState.ACKNOWLEDGED


def test_a_viewer_looks_and_cannot_change_by_page_or_by_hand(viewer: Watched, desk: Desk) -> None:
    page = _opened(viewer)
    assert page.locator("#incident-acts form").count() == 0
    assert "needs the role operator" in page.locator("#incident-acts").inner_text()
    answer = page.evaluate(
        """async (path) => {
          const token = document.cookie.match(/_csrf_token=([^;]+)/)[1];
          const answer = await fetch(path, {method: 'POST', body: '{}', headers: {
            'Content-Type': 'application/json', 'X-CSRFToken': token}});
          return [answer.status, (await answer.json()).error.code];
        }""",
        f"/api/v1/incidents/{INCIDENT}/acknowledge",
    )
    assert answer == [403, "forbidden"]
    assert desk.incidents.get(INCIDENT).state is IncidentState.OPEN
    assert any(not one.ok and "viewer@example.com" in one.actor for one in desk.audit.page(limit=50))
    admin = viewer.open("/admin", "#admin-tokens")
    assert admin.locator("#admin-detectors").count() == 0


def test_a_write_without_its_token_from_a_browser_is_refused(operator: Watched, desk: Desk) -> None:
    page = _opened(operator)
    status = page.evaluate(
        "async (path) => (await fetch(path, {method: 'POST', body: '{}'})).status",
        f"/api/v1/incidents/{INCIDENT}/acknowledge",
    )
    assert status == 403
    assert desk.incidents.get(INCIDENT).state is IncidentState.OPEN


def test_an_admin_changes_a_detector_and_makes_a_token_shown_once(browser: Browser, desk: Desk) -> None:
    watched = _as(browser, desk, "admin")
    page = watched.open("/admin", "#admin-detectors table")
    row = page.locator("#admin-detectors form[data-post='/api/v1/detectors/anomaly']")
    row.locator("select").select_option("shadow")
    row.locator("button").click()
    expect(page.locator("#admin-audit")).to_contain_text("detector.mode")
    assert DetectorSettings(desk.control).all()["anomaly"].mode == "shadow"
    form = page.locator("form[data-post='/api/v1/tokens']")
    form.locator("input[name=name]").fill("ci")
    form.locator("button").click()
    expect(form.locator(".fw-once code")).to_contain_text("fw_")
    expect(page.locator("#admin-tokens")).to_contain_text("ci")
    assert watched.wrong == []
    watched.context.close()


def test_the_post_mortem_opens_and_says_its_queries(operator: Watched) -> None:
    page = _opened(operator)
    link = page.locator("#incident-acts a", has_text="Post-mortem").get_attribute("href") or ""
    answer = page.request.get(f"{operator.url}{link}")
    assert answer.status == 200
    text = answer.text()
    for words in ("rank 5", "SELECT 1 AS evidence", "v_node_history", "1.04"):
        assert words in text
    plain = page.request.get(f"{operator.url}{link.replace('html', 'json')}").json()
    assert plain["incident"]["id"] == INCIDENT
    assert plain["incident"]["opened_at"].endswith("Z")
    assert SystemClock().now_ms() - plain["incident"]["opened_at_ms"] > 0


def test_a_person_of_another_tenant_sees_neither_node_nor_job_nor_incident(browser: Browser, desk: Desk) -> None:
    headers = {"X-Forwarded-User": "blue@example.com", "X-Forwarded-Groups": "blue"}
    context = browser.new_context(extra_http_headers=headers)
    set_cookies(context, desk.url, "en", "dark")
    watched = Watched(context, desk.url)
    page = watched.open("/", "#fleet-tiles .fw-tile-value")
    reporting = page.locator("#fleet-tiles .fw-tile", has_text="Accelerators reporting")
    expect(reporting.locator(".fw-tile-value")).to_have_text("0")
    for path, words in ((f"/nodes/{NODE}", "Nothing was ever received"), (f"/jobs/{JOB}", "No job of this name")):
        page = watched.open(path, ".fw-absent")
        expect(page.locator(".fw-absent h1")).to_contain_text(words)
        expect(page.locator(".fw-absent")).to_contain_text("No similar name is known")
        assert page.locator(".fw-panel").count() == 0
    with desk.control.transaction() as connection:
        connection.execute(sa.update(INCIDENTS).where(INCIDENTS.c.id == INCIDENT).values(tenant="red"))
    page = watched.open(f"/incidents/{INCIDENT}", ".fw-absent")
    expect(page.locator(".fw-absent h1")).to_have_text(f"There is no incident {INCIDENT}")
    assert "computes 30.0 %" not in page.locator("#fw-main").inner_text()
    with desk.control.transaction() as connection:
        connection.execute(sa.update(INCIDENTS).where(INCIDENTS.c.id == INCIDENT).values(tenant=None))
    context.close()


def test_an_incident_that_is_not_there_is_said_once(operator: Watched) -> None:
    page = operator.open("/incidents/UNKNOWN", ".fw-absent")
    assert page.locator("#fw-main").inner_text().count("There is no incident UNKNOWN") == 1
    assert page.locator(".fw-panel").count() == 0
    page.locator(".fw-absent a").click()
    page.wait_for_selector("#incidents-grid .ag-center-cols-container a")
    assert operator.wrong == []


def test_the_mode_of_actions_and_why_there_is_none(operator: Watched) -> None:
    text = operator.open("/incidents/i-old", "#incident-acts .fw-acts").locator("#incident-actions").inner_text()
    assert "dry run" in text
    assert "says what it would do and changes nothing" in text
    assert "Nothing was done or proposed." in text
    assert "Why: the incident is over." in text


def test_a_chinese_reader_gets_the_sentence_in_chinese_and_the_original_beside(browser: Browser, desk: Desk) -> None:
    desk.again()
    watched = _as(browser, desk, "operator")
    set_cookies(watched.context, desk.url, "zh", "dark")
    page = _opened(watched)
    found = page.locator("#incident-findings div[title^='rank 5']")
    expect(found.first).to_contain_text("计算时间比同角色 rank 长 30.0 %")
    expect(page.locator("#incident-summary .fw-cause")).to_contain_text("计算时间比同角色 rank 长 30.0 %")
    expect(page.locator("#incident-head h1")).to_contain_text("变慢")
    watched.context.close()

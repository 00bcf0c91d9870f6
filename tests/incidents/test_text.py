"""What people read: golden texts, the fold, levels of disclosure, unknown facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from flightwatch.core.incident import AlertReason, IncidentState
from flightwatch.core.vocabulary import FindingKind, Severity
from flightwatch.incidents.contract import Alert, Disclosure
from flightwatch.incidents.facts import Facts, next_command
from flightwatch.incidents.text import LEAD, incident_alert, incident_link, platform_alert, together_alert
from flightwatch.incidents.words import clock, duration, filters, names, number
from tests.incidents.alert_kit import OPENED_MS, incident
from tests.incidents.scenarios import SCENES, Scene

GOLDEN = Path(__file__).parent / "golden"
SHANGHAI = ZoneInfo("Asia/Shanghai")
LANGUAGES = ("en", "zh")


def render(scene: Scene, language: str = "en", disclosure: Disclosure = Disclosure.STANDARD, **more: object) -> Alert:
    return incident_alert(
        scene.incident, scene.facts, scene.reason, now_ms=scene.now_ms, zone=SHANGHAI, language=language,
        disclosure=disclosure, link="https://console.example/incidents/5e1f", **more,  # type: ignore[arg-type]
    )  # fmt: skip


def as_text(alert: Alert) -> str:
    facts = "".join(f"{label}: {value}\n" for label, value in alert.facts)
    return f"# {alert.title}\n\n{alert.lead}\n" + (f"\n{facts}" if facts else "")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", SCENES)
def test_golden_texts(name: str, language: str) -> None:
    file = GOLDEN / f"{name}.{language}.txt"
    assert as_text(render(SCENES[name], language)) == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", SCENES)
def test_the_lead_is_short_and_begins_with_severity_and_progress(name: str, language: str) -> None:
    alert = render(SCENES[name], language)
    assert len(alert.lead) <= LEAD
    first = alert.lead.splitlines()[0]
    assert SCENES[name].incident.severity.value in first
    assert "{" not in as_text(alert)
    assert "None" not in as_text(alert)


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_cannot_turn_or_hide_a_line(language: str) -> None:
    evil = "llm\u202e\u2066\x1b[31m\x00\u200b\nP4\r\n-70b\ud800"
    scene = replace(SCENES["slow"], incident=incident(job=evil, summary=f"It is {evil}.", tenant=evil, node=evil))
    alert = render(scene, language, disclosure=Disclosure.FULL)
    text = as_text(alert)
    assert "llm[31m P4 -70b" in text
    assert all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_huge_names_leave_the_first_lines_readable(language: str) -> None:
    name = "n" * 100_000
    scene = replace(SCENES["slow"], incident=incident(job=name, node=name, tenant=name, summary=name))
    alert = render(scene, language, disclosure=Disclosure.FULL)
    assert len(alert.lead) <= LEAD
    assert len(alert.title) < 1_000
    assert "P2" in alert.lead.splitlines()[0]


def test_lines_keep_their_order() -> None:
    lead = render(SCENES["xid79"]).lead
    marks = ["P1 · JOB STOPPED", "slot U20", "Cause", "Losing", "Last durable checkpoint", "No earlier incident",
             "waits for approval", "Next:", "ranks report", "Since"]  # fmt: skip
    places = [lead.index(mark) for mark in marks]
    assert places == sorted(places)


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_is_lost_below_the_fold(language: str) -> None:
    scene = SCENES["slow"]
    long = replace(scene.incident, summary="Rank 811 " + "computes longer and " * 40 + "stays so.")
    alert = render(replace(scene, incident=long), language, disclosure=Disclosure.FULL)
    assert len(alert.lead) <= LEAD
    text = as_text(alert)
    assert "stays so." in text or language == "zh"
    for known in ("U12", "1650123004417", "10.0.4.17", "R17", "700 W → 500 W", "--ranks 811,779,843", "1,021"):
        assert known in text


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", list(FindingKind))
@pytest.mark.parametrize("reason", list(AlertReason))
def test_every_kind_and_reason_has_words(kind: FindingKind, reason: AlertReason, language: str) -> None:
    alert = render(Scene(incident(kind=kind.value, class_=None), Facts(), reason), language)
    assert alert.title
    assert len(alert.lead) <= LEAD
    if language == "zh":
        assert filters("zh")["words"](kind.value) != kind.value.replace("_", " ")


def test_unknown_is_said_or_left_out_and_never_zero() -> None:
    bare = incident(
        device=None, rank=None, run=None, confidence=None, runner_up=None, gpus_affected=None,
        loss_gpu_hours_per_hour=None, lost_gpu_hours=None,
    )  # fmt: skip
    text = as_text(render(Scene(bare, Facts())))
    assert "Loss per hour: unknown." in text
    assert "Last durable checkpoint: unknown." in text
    for absent in ("slot", "serial", "BMC", "rack", "owner", "Idle nodes", "sure)", " 0 "):
        assert absent not in text


def test_a_fact_that_could_not_be_read_is_no_statement() -> None:
    text = as_text(render(Scene(incident(), Facts(complete=False))))
    assert "No earlier incident" not in text
    assert "Some facts could not be read in time." in text


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", SCENES)
def test_minimal_names_no_job_node_or_cause(name: str, language: str) -> None:
    scene = SCENES[name]
    text = as_text(render(scene, language, Disclosure.MINIMAL)) + render(scene, language, Disclosure.MINIMAL).body
    for word in ("llm-70b", "gpu-0", "wang", "rank", "Xid", "Z3", "loss", "cooling", scene.incident.summary[:20]):
        assert word not in text.replace("https://console.example/incidents/5e1f", "")


@pytest.mark.parametrize(
    ("kind", "summary", "secret", "kept"),
    [
        ("loss_spike", "Loss of j is 9.61 at step 81302, 4.6 times its recent level 2.09.", "9.61", "81302"),
        ("grad_norm", "Gradient norm of j is 145 at step 7, 9.0 times its recent level 16.", "145", "step 7"),
        ("nonfinite", "Non-finite values began on rank 3 (n1) in layers.7.mlp (forward) at step 9, on no other rank.",
         "layers.7", "step 9"),
        ("numerics", "FP8 of j: amax in layer decoder.4 since step 12; the recipe.", "decoder.4", "step 12"),
        ("hang", "Ranks 0-3 wait in all_reduce 7 for rank 4; its stack stands at train.py:9 in step (confidence 90%).",
         "train.py", "all_reduce 7"),
    ],
)  # fmt: skip
def test_loss_values_modules_and_stacks_are_told_only_in_full(kind: str, summary: str, secret: str, kept: str) -> None:
    scene = Scene(incident(kind=kind, class_=None, summary=summary, title=kind), Facts())
    for language in LANGUAGES:
        standard = as_text(render(scene, language))
        assert secret not in standard
        assert secret in as_text(render(scene, language, Disclosure.FULL))
        assert kept in standard or language == "zh"


def test_a_repeat_says_that_it_may_be_one() -> None:
    assert "may have come before" in as_text(render(SCENES["hang"], may_repeat=True))
    assert "可能重复" in as_text(render(SCENES["hang"], "zh", may_repeat=True))


def test_tags_of_reasons() -> None:
    scene = SCENES["slow"]
    tags = {
        AlertReason.WORSENED: "WORSE, now P2",
        AlertReason.REOPENED: "BACK AGAIN, P2",
        AlertReason.CHANGED: "P2, update",
    }  # fmt: skip
    for reason, tag in tags.items():
        assert render(replace(scene, reason=reason)).title.startswith(tag)
    taken = replace(scene.incident, state=IncidentState.ACKNOWLEDGED, acknowledged_by="li")
    acknowledged = render(replace(scene, incident=taken, reason=AlertReason.ACKNOWLEDGED))
    assert acknowledged.title.startswith("P2, li works on it")
    wrong = replace(scene.incident, state=IncidentState.FALSE_POSITIVE, closed_at_ms=OPENED_MS + 1000)
    assert render(replace(scene, incident=wrong, reason=AlertReason.RESOLVED)).title.startswith("FALSE ALARM, was P2")


def test_the_key_is_that_of_the_first_message() -> None:
    scene = SCENES["slow"]
    assert render(scene).key == scene.incident.id
    assert render(replace(scene, incident=replace(scene.incident, thread="first"))).key == "first"


def test_several_in_one_message() -> None:
    members = [
        (incident(id=f"i{n}", title=f"gpu-{n:04d}: slow", severity=severity), AlertReason.OPENED)
        for n in range(40)
        for severity in [Severity.P1 if n == 30 else Severity.P3]
    ]  # fmt: skip
    alert = together_alert(
        members, key="together-1", over=False, now_ms=OPENED_MS, cluster="blue", language="en",
        disclosure=Disclosure.STANDARD, link="", idempotency_key="k",
    )  # fmt: skip
    assert alert.title == "40 incidents at once, the worst is P1"
    assert alert.lead.splitlines()[1].startswith("- P1")
    assert len(alert.lead) <= LEAD
    assert alert.lead.splitlines()[-1].startswith("and ")
    shown = alert.lead + "".join(value for _, value in alert.facts)
    assert all(f"gpu-{n:04d}" in shown for n in range(40))
    over = together_alert(
        members, key="together-1", over=True, now_ms=OPENED_MS, cluster="blue", language="zh",
        disclosure=Disclosure.MINIMAL, link="", idempotency_key="k",
    )  # fmt: skip
    assert (over.reason, over.title) == (AlertReason.RESOLVED, "40 个事件已恢复")
    assert "gpu-" not in over.body


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("what", ["dead", "alive", "test"])
def test_messages_about_the_platform(what: str, language: str) -> None:
    detail = {"channel": "ops", "service": "slack", "since_ms": OPENED_MS, "error": "answered 403", "waiting": 3,
              "cluster": "blue", "at_ms": OPENED_MS, "actor": "li"}  # fmt: skip
    alert = platform_alert(
        what, detail, AlertReason.PLATFORM, Severity.P3, key="k", now_ms=OPENED_MS, zone=SHANGHAI, cluster="blue",
        language=language, idempotency_key="k",
    )  # fmt: skip
    assert "ops" in alert.lead
    if what == "dead":
        assert "answered 403." in alert.lead
        assert "flightwatch alerts test ops" in alert.lead


def test_commands_are_quoted() -> None:
    evil = incident(job="a; rm -rf /", kind="slow")
    assert next_command(evil, Facts()) == "flightwatch profile start --job 'a; rm -rf /' --ranks 811 --wait"


def test_links() -> None:
    assert incident_link("", "x") == ""
    assert incident_link("https://c.example/fw/", "a/b") == "https://c.example/fw/incidents/a%2Fb"


def test_words() -> None:
    assert [duration(ms) for ms in (0, 999, 61_000, 3_600_000, 7_380_000, 180_000_000)] == [
        "0 s", "1 s", "1 min 1 s", "1 h", "2 h 3 min", "2 d 2 h",
    ]  # fmt: skip
    assert [number(value) for value in (0, 1024, 12.54, 0.042, 131.7)] == ["0", "1,024", "12.5", "0.042", "132"]
    assert clock(OPENED_MS, ZoneInfo("UTC")) == "2026-11-30 00:53:20 UTC"
    assert clock(OPENED_MS, ZoneInfo("America/New_York")) == "2026-11-29 19:53:20 EST (2026-11-30 00:53:20 UTC)"
    assert clock(OPENED_MS, ZoneInfo("America/Sao_Paulo")).startswith("2026-11-29 21:53:20 UTC-03 (")
    assert names(["a", "b", "c", "d", "e"]) == "a, b … e"

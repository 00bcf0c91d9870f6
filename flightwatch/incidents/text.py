"""The text of messages: what a tired person reads, in a fixed order, the essential part in 600 characters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import jinja2

from flightwatch.core.incident import AlertReason, Incident
from flightwatch.core.vocabulary import FindingKind, Severity
from flightwatch.incidents.contract import Alert, Disclosure
from flightwatch.incidents.facts import Facts, next_command
from flightwatch.incidents.words import filters

#: Characters before the fold.
LEAD = 600
#: Characters of a title; names can be of any length.
LONGEST_TITLE = 300
_TEMPLATES = Path(__file__).parent / "templates"
#: The lines of a text in their order.
_ORDER = ("headline", "place", "cause", "runner_up", "loss", "checkpoint", "changes", "earlier", "did", "next",
          "coverage", "times")  # fmt: skip
#: What goes below the fold first when there is no room.
_BELOW_FIRST = ("coverage", "earlier", "runner_up", "did", "changes", "checkpoint", "place", "times")
#: Kinds whose sentence holds loss values or names of modules, and what is said instead where those are not told.
_PRIVATE = {
    FindingKind.LOSS_SPIKE.value: ("The loss left its level", "loss 偏离其水平"),
    FindingKind.GRAD_NORM.value: ("The gradient norm left its level", "梯度范数偏离其水平"),
    FindingKind.NUMERICS.value: ("FP8 values left their range", "FP8 数值超出范围"),
    FindingKind.NONFINITE.value: ("NaN or Inf appeared", "出现 NaN 或 Inf"),
}
_STEP = re.compile(r"\b(?:at|since) step (\d+)")
#: "; its stack stands at FILE:LINE in FUNCTION" of a hang's sentence.
_STACK = re.compile(r"; its stack stands at .*?(?= \(confidence|\.?$)")
#: The line begins with it already.
_CONFIDENCE = re.compile(r" \(confidence \d+ ?%\)")
_ORDER_OF_SEVERITY = {severity: rank for rank, severity in enumerate(Severity)}


@cache
def _words(language: str) -> Any:
    """Return the macros of a language."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), undefined=jinja2.StrictUndefined, autoescape=False,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= filters(language)
    return environment.get_template(f"{language}.j2").module


def prepare(language: str) -> None:
    """Read a language's lines before the first message needs them: that takes some tenths of a second, once."""
    _words(language)


def incident_alert(
    incident: Incident,
    facts: Facts,
    reason: AlertReason,
    *,
    now_ms: int,
    zone: ZoneInfo,
    language: str = "en",
    disclosure: Disclosure = Disclosure.STANDARD,
    link: str = "",
    idempotency_key: str = "",
    may_repeat: bool = False,
    picture: bytes | None = None,
) -> Alert:
    """Render a message about one incident.

    Parameters
    ----------
    now_ms: time of the message. zone: of local times. link: page of the incident, "" for none.
    may_repeat: an earlier attempt may have arrived; the text says so.
    """
    words = _words(language)
    since_ms = max(0, now_ms - incident.opened_at_ms)
    if disclosure is Disclosure.MINIMAL:
        title = str(words.minimal_title(incident, reason.value, since_ms))
        lead = str(words.minimal_lead(incident, reason.value, since_ms, now_ms, zone))
        facts_shown: list[tuple[str, str]] = []
        picture = None
    else:
        title = str(words.title(incident, facts, reason.value, since_ms))
        lines = _lines(words, incident, facts, reason, now_ms, zone, disclosure, language, since_ms)
        lead, facts_shown = _fold(lines, words.labels, incident, disclosure)
    if may_repeat:
        facts_shown.append((words.labels["notes"], str(words.repeat())))
    return Alert(
        key=incident.thread or incident.id, idempotency_key=idempotency_key, reason=reason,
        severity=incident.severity, title=_title(title), lead=lead, body=_body(lead, facts_shown, link),
        facts=tuple(facts_shown), link=link, at_ms=now_ms, opened_at_ms=incident.opened_at_ms,
        cluster=incident.cluster, incident=None if disclosure is Disclosure.MINIMAL else incident, picture=picture,
        language=language,
    )  # fmt: skip


def incident_title(incident: Incident, language: str) -> str:
    """Return the line that names an incident in lists; the engine's own title is English."""
    if language == "en":
        return incident.title
    words, facts = _words(language), Facts()
    what = _one_line(str(words.what(incident, facts)))
    return what if not incident.job or incident.job in what else f"{what} · {incident.job}"


def incident_sheet(
    incident: Incident, facts: Facts, *, now_ms: int, zone: ZoneInfo, language: str
) -> list[tuple[str, str, str]]:
    """Return what a message tells in full, line by line without a fold: name of the line, its label, its words.

    The first line, `headline`, has no label.
    """
    words = _words(language)
    reason = AlertReason.RESOLVED if incident.closed else AlertReason.OPENED
    since_ms = max(0, now_ms - incident.opened_at_ms)
    lines = _lines(words, incident, facts, reason, now_ms, zone, Disclosure.FULL, language, since_ms)
    return [(name, *_parted(line, words.labels.get(name, ""), headed=name == "cause")) for name, line in lines.items()]


def _parted(line: str, label: str, *, headed: bool) -> tuple[str, str]:
    """Return a line as label and words; `headed`: what stands before its colon is the label ("Cause (90 % sure)")."""
    head, sign, rest = line.partition(":")
    if sign and (head == label or (headed and head.startswith(label))):
        return head, rest.strip()
    return label, line


def _lines(
    words: Any, incident: Incident, facts: Facts, reason: AlertReason, now_ms: int, zone: ZoneInfo,
    disclosure: Disclosure, language: str, since_ms: int,
) -> dict[str, str]:  # fmt: skip
    made = {
        "headline": words.headline(incident, facts, reason.value, since_ms),
        "place": words.place(incident, facts),
        "cause": words.cause(incident, facts, told_cause(incident, disclosure, language)),
        "runner_up": words.runner_up(incident, facts),
        "loss": words.loss(incident, facts),
        "checkpoint": words.checkpoint(incident, facts, now_ms),
        "changes": words.changes(incident, facts, now_ms),
        "earlier": words.earlier(incident, facts, now_ms),
        "did": words.did(incident, facts),
        "next": words.next(incident, next_command(incident, facts)),
        "coverage": words.coverage(incident, facts),
        "times": words.times(incident, now_ms, zone),
    }
    lines = {name: _one_line(str(text)) for name, text in made.items()}
    return {name: lines[name] for name in _ORDER if lines[name]}


def told_cause(incident: Incident, disclosure: Disclosure, language: str = "en") -> str:
    """Return the sentence of the cause, without loss values, module names and stacks unless all may be told."""
    summary = _CONFIDENCE.sub("", incident.summary) if incident.confidence is not None else incident.summary
    if disclosure is Disclosure.FULL:
        return summary
    private = _PRIVATE.get(incident.kind)
    if private is None:
        return _STACK.sub("", summary)
    text = private[language == "zh"]
    found = _STEP.search(incident.summary)
    step = found[1] if found else None
    rank = incident.rank
    if language == "zh":
        return text + (f",rank {rank}" if rank is not None else "") + (f",第 {step} 步" if step else "")
    return text + (f" on rank {rank}" if rank is not None else "") + (f" at step {step}" if step else "")


def _fold(
    lines: dict[str, str], labels: Mapping[str, str], incident: Incident, disclosure: Disclosure
) -> tuple[str, list[tuple[str, str]]]:
    """Divide the lines into the lead and what comes below it, keeping the order in both."""
    lead = dict(lines)
    below: set[str] = set()
    for name in _BELOW_FIRST:
        if name in lead and _length(lead) > LEAD:
            del lead[name]
            below.add(name)
    for name in reversed(_BELOW_FIRST):
        # A short line may fit into what a long one left.
        if name in below and _length(lead) + 1 + len(lines[name]) <= LEAD:
            below.discard(name)
            lead = {kept: lines[kept] for kept in lines if kept in lead or kept == name}
    room = LEAD - _length({name: text for name, text in lead.items() if name != "cause"}) - 1
    if "cause" in lead and len(lead["cause"]) > room:
        lead["cause"] = lead["cause"][: max(40, room - 1)].rstrip() + "…"
        below.add("cause")
    text = "\n".join(lead.values())
    if len(text) > LEAD:
        text = text[: LEAD - 1].rstrip() + "…"
    # A line often begins with the word that is its label.
    facts = [
        (labels[name], _without_label(lines[name], labels[name])) for name in lines if name in below and name in labels
    ]
    if len(incident.targets) > 3 and disclosure is not Disclosure.MINIMAL:
        facts.append((labels["place"], ", ".join(incident.targets[:64])))
    return text, facts


def _without_label(line: str, label: str) -> str:
    for mark in (": ", ":", " "):
        if line.startswith(label + mark):
            return line[len(label + mark) :]
    return line


def _length(lines: Mapping[str, str]) -> int:
    return sum(len(text) + 1 for text in lines.values()) - 1


def together_alert(
    members: Sequence[tuple[Incident, AlertReason]],
    *,
    key: str,
    over: bool,
    now_ms: int,
    cluster: str,
    language: str,
    disclosure: Disclosure,
    link: str,
    idempotency_key: str,
    may_repeat: bool = False,
) -> Alert:
    """Render one message about several incidents."""
    words = _words(language)
    ordered = sorted(members, key=lambda one: (_ORDER_OF_SEVERITY[one[0].severity], one[0].opened_at_ms))
    titles = [_member(words, incident, reason, disclosure) for incident, reason in ordered]
    counts: dict[str, int] = {}
    for incident, _ in ordered:
        counts[incident.severity.value] = counts.get(incident.severity.value, 0) + 1
    shown = ", ".join(f"{count} {severity}" for severity, count in counts.items())
    worst = ordered[0][0].severity if ordered else Severity.P3
    lead = str(words.together_lead(len(ordered), over, shown))
    listed = 0
    for title in titles:
        line = f"\n- {title}"
        if len(lead) + len(line) + 24 > LEAD:
            break
        lead += line
        listed += 1
    if listed < len(titles):
        lead += f"\n{words.and_more(len(titles) - listed)}"
    facts = [(str(number), title) for number, title in enumerate(titles, 1)][listed : listed + 40]
    if may_repeat:
        facts.append((words.labels["notes"], str(words.repeat())))
    return Alert(
        key=key, idempotency_key=idempotency_key, reason=AlertReason.RESOLVED if over else AlertReason.OPENED,
        severity=worst, title=_title(str(words.together_title(len(ordered), over, worst.value))), lead=lead,
        body=_body(lead, facts, link), facts=tuple(facts), link=link, at_ms=now_ms,
        opened_at_ms=min((one.opened_at_ms for one, _ in ordered), default=now_ms), cluster=cluster, language=language,
    )  # fmt: skip


def _member(words: Any, incident: Incident, reason: AlertReason, disclosure: Disclosure) -> str:
    if disclosure is Disclosure.MINIMAL:
        return _one_line(str(words.minimal_title(incident, reason.value, 0)))
    return _one_line(str(words.title(incident, Facts(), reason.value, 0)))


def platform_alert(
    what: str, detail: Mapping[str, Any], reason: AlertReason, severity: Severity, *, key: str, now_ms: int,
    zone: ZoneInfo, cluster: str, language: str, idempotency_key: str, link: str = "",
) -> Alert:  # fmt: skip
    """Render a message about Flightwatch itself; `what` is "dead", "alive" or "test"."""
    words = _words(language)
    title = str(getattr(words, f"{what}_title")(detail))
    lead = str(getattr(words, f"{what}_lead")(detail, zone))
    return Alert(
        key=key, idempotency_key=idempotency_key, reason=reason, severity=severity, title=_title(title), lead=lead,
        body=_body(lead, (), link), facts=(), link=link, at_ms=now_ms, opened_at_ms=now_ms, cluster=cluster,
        language=language,
    )  # fmt: skip


def merged_alert(
    into: Incident, *, key: str, now_ms: int, language: str, disclosure: Disclosure, link: str, idempotency_key: str
) -> Alert:
    """Render the end of a thread whose incident was taken over by another."""
    words = _words(language)
    told = into if disclosure is not Disclosure.MINIMAL else replace(into, title=into.cluster)
    lead = str(words.merged_lead(told, link))
    return Alert(
        key=key, idempotency_key=idempotency_key, reason=AlertReason.RESOLVED, severity=into.severity,
        title=_title(str(words.merged_title(told))), lead=lead, body=lead, facts=(), link=link, at_ms=now_ms,
        opened_at_ms=into.opened_at_ms, cluster=into.cluster, language=language,
    )  # fmt: skip


def incident_link(console_url: str, incident: str) -> str:
    """Return the address of an incident's page, "" without a console address."""
    return f"{console_url.rstrip('/')}/incidents/{quote(incident, safe='')}" if console_url else ""


def _one_line(text: str) -> str:
    """Return a text as one line; what cannot be seen is dropped: it could turn the line around or hide a part."""
    return " ".join("".join(char for char in text if char.isprintable() or char.isspace()).split())


def _title(text: str) -> str:
    return _one_line(text)[:LONGEST_TITLE]


def _body(lead: str, facts: Sequence[tuple[str, str]], link: str) -> str:
    parts = [lead, "\n".join(f"- **{label}**: {value}" for label, value in facts), link]
    return "\n\n".join(part for part in parts if part)

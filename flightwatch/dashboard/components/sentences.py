"""What detectors and the engine say, in the reader's language; the English original is one pointer away."""

from __future__ import annotations

from dash import html

from flightwatch.core.incident import Incident
from flightwatch.dashboard.i18n import language
from flightwatch.incidents.chinese import in_chinese
from flightwatch.incidents.text import incident_title

#: Longest sentence of a list; an event's message can be a page.
LONGEST = 300


def words_of(sentence: str) -> str:
    """Return a sentence in the language of the request; as it is where that language does not have it."""
    return (in_chinese(sentence) if language() == "zh" else None) or sentence


def told(sentence: str) -> html.Div:
    """Return a sentence in the language of the request, with the original on it where that is another one."""
    words = words_of(sentence)
    original = {} if words == sentence else {"title": sentence}
    return html.Div(words if len(words) <= LONGEST else words[:LONGEST] + "…", **{"data-raw": "1"}, **original)


def title_of(one: Incident) -> str:
    """Return the line that names an incident, in the language of the request."""
    return incident_title(one, language())

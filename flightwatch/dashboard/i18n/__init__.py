"""The words of the console, one module a language; every language has every word."""

from __future__ import annotations

from collections.abc import Mapping

import flask

from flightwatch.dashboard.components.request import cookie
from flightwatch.dashboard.i18n import en, en_admin, en_incidents, en_tools, zh, zh_admin, zh_incidents, zh_tools

LANGUAGES: Mapping[str, Mapping[str, str]] = {
    "en": en.WORDS | en_tools.WORDS | en_incidents.WORDS | en_admin.WORDS,
    "zh": zh.WORDS | zh_tools.WORDS | zh_incidents.WORDS | zh_admin.WORDS,
}
#: As a language calls itself.
NAMES = {"en": "EN", "zh": "中文"}


def language() -> str:
    """Return the language of the present request: what the person chose, else what the browser prefers."""
    if not flask.has_request_context():
        return "en"
    preferred = flask.request.accept_languages.best_match(["en", "zh"], "en")
    return cookie("fw_lang", tuple(LANGUAGES), preferred)


def t(key: str, **values: object) -> str:
    """Return the words for `key` in the language of the request, with `{names}` filled in. KeyError: no such key."""
    found = LANGUAGES[language()][key]
    return found.format(**values) if values else found


def words_for_scripts() -> dict[str, str]:
    """Return the words that scripts in the browser need, in the language of the request."""
    return {key: word for key, word in LANGUAGES[language()].items() if key.startswith("js.")}


def known(prefix: str, word: str) -> str:
    """Return the words for a word of the vocabulary; the word itself when it is one of a newer version."""
    return LANGUAGES[language()].get(f"{prefix}.{word}", word)

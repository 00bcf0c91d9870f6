"""The words of the console: every language has every key, with the same gaps to fill in."""

from __future__ import annotations

import re

from flightwatch.core.vocabulary import FindingKind, RunPhase
from flightwatch.dashboard.components.fleet_view import METRICS
from flightwatch.dashboard.i18n import LANGUAGES, known, t
from flightwatch.dashboard.pages.registry import PAGES
from flightwatch.pipeline.store.step_reads import CHANNELS


def test_every_language_has_every_word() -> None:
    english, chinese = LANGUAGES["en"], LANGUAGES["zh"]
    assert sorted(english) == sorted(chinese)
    assert all(word.strip() for words in LANGUAGES.values() for word in words.values())


def test_translations_fill_in_the_same_names() -> None:
    for key, word in LANGUAGES["en"].items():
        assert sorted(set(re.findall(r"{\w+}", word))) == sorted(set(re.findall(r"{\w+}", LANGUAGES["zh"][key]))), key


def test_chinese_is_chinese() -> None:
    names = {"page.sql", "unit.ranks", "col.rank"}
    for key, word in LANGUAGES["zh"].items():
        assert re.search(r"[\u4e00-\u9fff]", word) or key in names or not re.search(r"[a-z]{3}", word), (key, word)


def test_the_vocabulary_has_words() -> None:
    for kind in FindingKind:
        assert known("kind", kind.value) != kind.value or kind.value == "hang"
    assert all(t(f"phase.{phase.value}") for phase in RunPhase)
    assert all(t(f"metric.{metric}") for metric in METRICS)
    assert all(t(f"channel.{channel}") for channel in CHANNELS)
    assert all(t(page.NAME) for page in PAGES)
    assert known("kind", "a_kind_of_tomorrow") == "a_kind_of_tomorrow"

"""Sentences in the reader's language, with the original beside."""

from __future__ import annotations

import flask
import pytest

from flightwatch.dashboard.components.sentences import LONGEST, title_of, told, words_of
from tests.incidents.alert_kit import incident

ENGLISH = "n1 has sent nothing for 42 s while other nodes go on."


def in_language(language: str) -> flask.ctx.RequestContext:
    return flask.Flask("words").test_request_context("/", headers={"Cookie": f"fw_lang={language}"})


def test_an_english_reader_gets_what_was_said() -> None:
    with in_language("en"):
        assert words_of(ENGLISH) == ENGLISH
        assert not hasattr(told(ENGLISH), "title")
        assert title_of(incident(title="a title")) == "a title"


def test_a_chinese_reader_gets_chinese_and_the_original_on_it() -> None:
    with in_language("zh"):
        shown = told(ENGLISH)
        assert shown.children == "n1 已 42 秒没有发送数据，而其他节点正常。"
        assert shown.title == ENGLISH
        assert "变慢" in title_of(incident(kind="slow", class_="compute"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_nobody_translated_is_shown_as_it_is_and_a_page_of_text_is_cut(language: str) -> None:
    with in_language(language):
        assert told("NVRM: something odd").children == "NVRM: something odd"
        assert len(told("x" * 5000).children) == LONGEST + 1

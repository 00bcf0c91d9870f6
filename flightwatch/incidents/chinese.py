"""Chinese of a detector's sentence, read by what stays the same in it; the figures are those of the sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache

from flightwatch.incidents.sentences_zh import SENTENCES, WORDS

#: How sentences end that say that something is over, and the Chinese.
_ENDS = ((": over.", "：已恢复。"), (": no longer stated.", "：不再判定。"))
_HOLE = re.compile(r"\{(\w+)\}")
_PLACE = re.compile(r"[\w.:/-]+(?: device \d+)?")
#: Between parts of a hole that holds several, the outer one first.
_BETWEEN = (("; ", "；"), (", ", "，"))
#: Holes that not every text fits; the others take what stands there.
_SHAPES = {
    "what": "(?:computes|leaves|waits|moves) .+?", "where": r"(?: in .+?)?(?: \(\w+\))?",
    "code": r"[\w:.-]+(?: [\w.-]+)?",
}  # fmt: skip
#: Detectors' sentences are shorter (statements cut them there); an event's message can be a page of anything.
_LONGEST = 2000
_DEVICE = re.compile(r"\bdevice (\d+)")
_RANKS = re.compile(r"\b[Rr]anks (?=\d)")


@lru_cache(maxsize=4096)
def in_chinese(sentence: str) -> str | None:
    """Return the Chinese of a detector's sentence; None where it is of a kind that the catalogue does not have.

    Names, figures and what a vendor calls an error stay as they are. Costs a search through the catalogue, once a
    sentence.
    """
    sentence = sentence.strip()
    if len(sentence) > _LONGEST or "\n" in sentence:
        return None
    for end, chinese in _ENDS:
        if sentence.endswith(end):
            return _ended(sentence.removesuffix(end), chinese)
    return _translated(sentence, _sentences())


def _ended(begin: str, end: str) -> str | None:
    """Return what is over; such a sentence holds the beginning of the one that was said before."""
    found = _translated(f"{begin}.", _sentences()) or _translated(begin, _sentences()) or _translated(begin, _heads())
    if found is None and _PLACE.fullmatch(begin):
        found = _filled(begin)
    return None if found is None else found.rstrip("。") + end


class _Pattern:
    """A sentence of the catalogue and its Chinese.

    Before the expression is tried, its literal parts are looked for one after the other: on a text that has only some
    of them the expression would try every way to share the text out among its holes, for minutes on a hostile one.
    """

    def __init__(self, english: str, chinese: str) -> None:
        self.chinese = chinese
        self._expression = re.compile(_expression(english))
        self._literals = _HOLE.split(english)[::2]

    def match(self, text: str) -> re.Match[str] | None:
        """Return the match of a whole text."""
        *parts, last = self._literals
        at = 0
        for part in parts:
            at = text.find(part, at)
            if at < 0:
                return None
            at += len(part)
        return self._expression.fullmatch(text) if text.endswith(last) and len(text) - len(last) >= at else None


_Patterns = tuple[_Pattern, ...]


def _translated(text: str, patterns: _Patterns) -> str | None:
    for pattern in patterns:
        match = pattern.match(text)
        if match is not None:
            # The keys of the pattern are the holes of the Chinese, all of them or some.
            return _HOLE.sub(_text_of(match), pattern.chinese)
    return None


def _text_of(match: re.Match[str]) -> Callable[[re.Match[str]], str]:
    return lambda hole: _filled(match[hole[1]])


def _filled(text: str) -> str:
    """Return the Chinese of what stands in a hole; names and figures stay."""
    whole = _translated(text, _words())
    if whole is not None:
        return whole
    if text == "the job":
        return "作业"
    for sign, chinese in _BETWEEN:
        parts = text.split(sign)
        told = [_filled(part) for part in parts] if len(parts) > 1 else []
        if told != parts[: len(told)]:
            return chinese.join(told)
    return _RANKS.sub("rank ", _DEVICE.sub(r"GPU \1", text))


@cache
def _sentences() -> _Patterns:
    return _compiled(SENTENCES)


@cache
def _words() -> _Patterns:
    return _compiled(WORDS)


@cache
def _heads() -> _Patterns:
    """Return the beginnings of sentences, up to their first colon or semicolon."""
    heads = {_head(english, ";:"): _head(chinese, "；：") for english, chinese in SENTENCES.items()}
    return _compiled({english: chinese for english, chinese in heads.items() if not _HOLE.fullmatch(english)})


def _head(text: str, signs: str) -> str:
    return re.split(f"[{signs}]", text)[0].rstrip(".。")


def _compiled(catalogue: Mapping[str, str]) -> _Patterns:
    return tuple(_Pattern(english, chinese) for english, chinese in catalogue.items())


def _expression(english: str) -> str:
    """Return the regular expression of a sentence; a hole takes as little as fits, and the same text each time."""
    seen: set[str] = set()
    parts = []
    for index, part in enumerate(_HOLE.split(english)):
        if index % 2 == 0:
            parts.append(re.escape(part))
        elif part in seen:
            parts.append(f"(?P={part})")
        else:
            seen.add(part)
            parts.append(f"(?P<{part}>{_SHAPES.get(part, '.+?')})")
    return "".join(parts)

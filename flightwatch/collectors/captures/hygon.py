"""Hygon `hy-smi --json`: JSON that is often none (bare units, banner text, several objects)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, json_documents, read_document, to_int
from flightwatch.collectors.captures.rocm import ROCM_CARRIES, ROCM_NULL_NOTES, card_device, cards
from flightwatch.core.protocols import CaptureContext, Note, Row

#: A string, or a bare word in the place of a value.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"{}\[\],:]+')
_GOOD = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\Z|true\Z|false\Z|null\Z", re.ASCII)
_KEYS = (
    "GPU use (%)", "DCU use (%)", "HCU use (%)", "Temperature (Sensor", "Average Graphics Package Power", "Card model",
    "Card series",
)  # fmt: skip
_OBJECTS_LIMIT = 4096


class HySmi:
    """Reads what `hy-smi --json` prints, repairing only what is unambiguous.

    A bare word in a value's place (`23%`, `41.0C`, `N/A`, `0x67e1`) is read as the text it is; a number with
    a unit becomes the number, `N/A` and `unknown` become NULL, hexadecimal ids stay text. Several objects are
    merged. Keys without quotes are not repaired: such an object is an error.
    """

    name = "hy-smi-json"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = ROCM_CARRIES
    NULL_NOTES: ClassVar[Mapping[str, str]] = ROCM_NULL_NOTES

    def recognise(self, head: bytes) -> bool:
        """Recognise Hygon's banner or names with an object, or rocm-smi keys with bare values."""
        text = head_text(head)
        if "{" not in text:
            return False
        named = re.search(r"hy-smi|Hygon|\bDCU\b|\bHCU\b", text) is not None
        keyed = any(f'"{key}' in text for key in _KEYS)
        bare = re.search(r'"\s*:\s*-?[\d.]+(?:%|[A-Za-z]+)\s*[,}]', text) is not None
        return (named and (keyed or re.search(r'"card\d+"', text) is not None)) or (keyed and bare)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per card of the merged objects."""
        text, notes = read_document(stream)
        yield from notes
        merged: dict[str, dict[str, Any]] = {}
        lone: list[dict[str, Any]] = []
        for offset, chunk in objects(text.replace("\\n", "\n")):
            document, error = lenient(chunk)
            if error is not None:
                yield Note("error", f"offset {offset} ({error.where})", error.text)
            if isinstance(document, dict):
                members = {name: member for name, member in document.items() if isinstance(member, dict)}
                for name, member in members.items():
                    merged.setdefault(name, {}).update(member)
                if not members:
                    lone.append(document)
        if not merged and not lone:
            yield Note("error", "offset 0", "no JSON object was found")
        yield from cards(merged, "hygon", self.CARRIES, context)
        for document in lone:
            if any(key.startswith(_KEYS) for key in document):
                yield from self._lone(document, context)

    def _lone(self, document: Mapping[str, Any], context: CaptureContext) -> Iterator[Row | Note]:
        device = card_device(document, None, "object without a card name", "hygon", self.CARRIES, context)
        device.note("warning", "the object names no card: its index is unknown")
        yield from device.rows()


def objects(text: str) -> Iterator[tuple[int, str]]:
    """Yield (offset, text) of every outermost `{...}` of a text, skipping text between them.

    An object that is not closed is yielded to the end of the text.
    """
    depth = start = 0
    count = 0
    position = 0
    for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"|[{}]', text):
        position = match.end()
        if match[0] == "{":
            if depth == 0:
                start = match.start()
            depth += 1
        elif match[0] == "}" and depth:
            depth -= 1
            if depth == 0:
                count += 1
                yield start, text[start:position]
                if count >= _OBJECTS_LIMIT:
                    return
    if depth:
        yield start, text[start:]


def lenient(text: str) -> tuple[Any, Note | None]:
    """Read one object in which bare words may stand for values; returns (value or None, error or None)."""
    repaired = _TOKENS.sub(_quote, text)
    found = list(json_documents(repaired))
    if found:
        return found[0][1], next((error for _, _, error in found if error is not None), None)
    return None, Note("error", "offset 0", "the object is empty")


def _next_character(text: str, position: int, step: int) -> str:
    while 0 <= position < len(text):
        if not text[position].isspace():
            return text[position]
        position += step
    return ""


def _quote(match: re.Match[str]) -> str:
    word = match[0]
    if word.startswith('"') or _GOOD.match(word):
        return word
    text = match.string
    before = _next_character(text, match.start() - 1, -1)
    if before not in (":", ",", "["):
        return word
    if before != ":" and _next_character(text, match.end(), 1) == ":":
        return word  # a key without quotes: not repaired
    if word.lower() in ("n/a", "unknown", "none", "nan", "-"):
        return "null"
    if to_int(word) is None and '"' not in word and "\\" not in word:
        return f'"{word}"'
    return f'"{word}"' if word.lower().startswith("0x") else word

"""JSON documents that were cut off: complete records are read, the damage is told."""

from __future__ import annotations

import io
import json

import pytest

from flightwatch.collectors.captures.base import json_documents, load_json
from flightwatch.collectors.captures.registry import parsers
from flightwatch.core.protocols import CaptureContext, Note, Row

CARDS = {f"card{n}": {"Temperature (Sensor edge) (C)": f"{30 + n}.0", "GPU use (%)": "7"} for n in range(3)}


def kept(text: str) -> list[object]:
    return [value for _, value, error in json_documents(text) if error is None]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('[{"a": 1}, {"a": 2}, {"a": 3', [{"a": 1}, {"a": 2}]), ('{"a": {"b": 1}, "c": {"b": 23', {"a": {"b": 1}}),
        ('{"gpu_data": [{"g": 0}, {"g": 1}, {"g', {"gpu_data": [{"g": 0}, {"g": 1}]}),
        ('{"a": 1, "b": 22', {"a": 1}), ('[1, 2, 34', [1, 2]), ('[{"s": "x,]}"}, "cut', [{"s": "x,]}"}]),
        ('{"a": [{"b": 1}]', {"a": [{"b": 1}]}),
    ],
)  # fmt: skip
def test_only_complete_records_are_kept(text: str, value: object) -> None:
    assert kept(text) == [value]
    read, notes = load_json(io.BytesIO(text.encode()))
    assert read == value
    assert [note.text for note in notes if note.level == "error"] == ["the JSON text is truncated here"]


@pytest.mark.parametrize("text", ['{"a": 12', '[{"a": 1', '["cut', "[" * 5000, '{"a": 1]', '{"a" 1, "b": 2}'])
def test_nothing_is_made_up(text: str) -> None:
    assert kept(text) == []


def test_every_cut_of_a_capture_gives_a_prefix_of_its_rows_and_an_error() -> None:
    text = json.dumps(CARDS)
    parser = next(parser for parser in parsers() if parser.name == "rocm-smi-json")
    for end in range(20, len(text) - 1, 7):
        items = list(parser.parse(io.BytesIO(text[:end].encode()), CaptureContext("x")))
        rows = [row.values for row in items if isinstance(row, Row) and row.table == "device_samples"]
        assert [row["temp_c"] for row in rows] == [30.0, 31.0, 32.0][: len(rows)]
        assert all(row["util_pct"] == 7.0 for row in rows)
        assert any(isinstance(item, Note) and item.level == "error" for item in items)

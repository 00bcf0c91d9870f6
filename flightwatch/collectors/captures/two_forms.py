"""Tools that print either JSON or text, by an option: the form is told from the first character."""

from __future__ import annotations

from typing import Any, BinaryIO

from flightwatch.collectors.captures.base import json_documents, read_document
from flightwatch.core.protocols import Note


def read_json_or_text(stream: BinaryIO) -> tuple[list[Any], str, list[Note]]:
    """Read a capture whole.

    Returns
    -------
    (documents, text, notes): for JSON the documents that could be read and an empty text; for anything
    else no documents and the text. Malformed JSON is a Note of level "error" that names the offset.
    """
    text, notes = read_document(stream)
    if text.lstrip()[:1] not in ("{", "["):
        if not text.strip():
            notes.append(
                Note("error", "offset 0", "the file is empty: nothing was captured, which is not a reading of 0")
            )
        return [], text, notes
    documents: list[Any] = []
    for _, value, error in json_documents(text):
        if error is not None:
            notes.append(error)
        else:
            documents.append(value)
    return documents, "", notes


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list (or the one object), without what is neither."""
    if isinstance(value, dict):
        return [value]
    if isinstance(value, list):
        return [item for item in value if isinstance(item, dict)]
    return []

"""Records of the control database as JSON documents, and the pydantic models that describe them.

`at_ms` and `x_at_ms` become `at` and `x_at` (ISO-8601, UTC), `class_` becomes `class`; nothing else changes. The models
are derived, so a new field of a record is in the API and its OpenAPI document at once.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from flightwatch.core.clock import iso_utc


def document_of(record: Any, *without: str) -> dict[str, Any]:
    """Return a dataclass instance as a JSON-ready document.

    Parameters
    ----------
    without: names of fields that are nobody's business.
    """
    return {
        _renamed(field.name): _value(field.name, getattr(record, field.name))
        for field in dataclasses.fields(record)
        if field.name not in without
    }


def _renamed(name: str) -> str:
    return name.removesuffix("_ms") if _is_time(name) else name.removesuffix("_")


def _is_time(name: str) -> bool:
    return name == "at_ms" or name.endswith("_at_ms")


def _value(name: str, value: Any) -> Any:
    if _is_time(name):
        return iso_utc(value)
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return document_of(value)
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    if isinstance(value, Mapping):
        return {str(key): _value("", one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_value("", one) for one in value]
    return value


@cache
def model_of(kind: type[Any], *without: str, name: str = "") -> type[BaseModel]:
    """Return the pydantic model of the documents of a dataclass."""
    hints = typing.get_type_hints(kind)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in without:
            continue
        hint = _hint(field.name, hints[field.name])
        fields[_renamed(field.name)] = (hint, ... if not _is_optional(hint) else None)
    doc = (kind.__doc__ or "").partition("\n")[0]
    config = ConfigDict(ser_json_inf_nan="strings")
    return create_model(name or kind.__name__, __config__=config, __doc__=doc, **fields)


def page_model(item: type[BaseModel], name: str) -> type[BaseModel]:
    """Return the model of one page of a list: the items and the cursor of the next page."""
    return create_model(
        name,
        __doc__="A part of a list. `next_cursor` asks for what follows; null at the end.",
        items=(list[item], ...),  # type: ignore[valid-type]
        next_cursor=(str | None, None),
    )


def details_model(
    name: str, doc: str, single: Mapping[str, type[BaseModel]], lists: Mapping[str, type[BaseModel]]
) -> type[BaseModel]:
    """Return the model of a document with parts that are documents, and lists of documents."""
    fields: dict[str, Any] = {part: (model, ...) for part, model in single.items()}
    fields |= {part: (list[model], ...) for part, model in lists.items()}  # type: ignore[valid-type]
    return create_model(name, __doc__=doc, **fields)


def page_of(items: Iterable[dict[str, Any]], next_cursor: str | None) -> dict[str, Any]:
    """Return the document of one page."""
    return {"items": list(items), "next_cursor": next_cursor}


def _is_optional(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _hint(name: str, hint: Any) -> Any:
    """Return the type of a field as it stands in the document."""
    if _is_time(name):
        return (str | None) if _is_optional(hint) else str
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [_hint("", one) for one in arguments if one is not type(None)]
        return (kinds[0] | None) if len(kinds) == 1 else Any
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return model_of(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[str, Any]
    if isinstance(origin, type) and issubclass(origin, (Sequence, frozenset)) and origin is not str:
        first = arguments[0] if arguments else Any
        if dataclasses.is_dataclass(first) and isinstance(first, type):
            return list[model_of(first)]  # type: ignore[misc]
        return list[first] if first in (str, int, float) else list[Any]  # type: ignore[valid-type]
    return hint

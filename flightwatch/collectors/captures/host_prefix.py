"""Output of many hosts in one text, each line after its host's name, as `pdsh` and `clush` print it."""

from __future__ import annotations

import re
from typing import BinaryIO

from flightwatch.collectors.captures.base import DOCUMENT_LIMIT
from flightwatch.core.protocols import Note

_LINE = re.compile(rb"([A-Za-z0-9][A-Za-z0-9._-]{0,252}): ?(.*)", re.DOTALL)
_HOSTS_LIMIT = 20_000
_FEWEST_LINES = 2


def first_host(head: bytes) -> bytes | None:
    """Return what the first host printed when every line bears a host's name; None for other texts."""
    lines = [line for line in head.splitlines(keepends=True) if line.strip()]
    if len(head) >= 1 << 16:
        lines = lines[:-1]
    found = [_LINE.fullmatch(line) for line in lines]
    if len(found) < _FEWEST_LINES or not all(found):
        return None
    host = found[0][1] if found[0] else b""
    return b"".join(match[2] for match in found if match and match[1] == host)


def by_host(stream: BinaryIO) -> tuple[dict[str, bytes], list[Note]]:
    """Return what each host printed, in order of the hosts' first lines, and notes about the rest."""
    data = stream.read(DOCUMENT_LIMIT + 1)
    notes: list[Note] = []
    if len(data) > DOCUMENT_LIMIT:
        text = f"the file is larger than {DOCUMENT_LIMIT} bytes; the rest was not read"
        notes.append(Note("error", f"offset {DOCUMENT_LIMIT}", text))
        data = data[: data.rfind(b"\n", 0, DOCUMENT_LIMIT) + 1]
    parts: dict[str, list[bytes]] = {}
    strangers = 0
    for line in data.splitlines(keepends=True):
        match = _LINE.fullmatch(line)
        if match is None:
            strangers += bool(line.strip())
        elif (name := match[1].decode()) in parts or len(parts) < _HOSTS_LIMIT:
            parts.setdefault(name, []).append(match[2])
        else:
            strangers += 1
    if strangers:
        notes.append(Note("warning", "", f"{strangers} lines without a host's name were left out"))
    return {host: b"".join(lines) for host, lines in parts.items()}, notes

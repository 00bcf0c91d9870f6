"""The walk on its own: any reader gets each capture once, and trees only of what it claims."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from flightwatch.collectors.capture_walk import CaptureWalk
from flightwatch.collectors.captures.memory_tree import MemoryTree
from flightwatch.core.protocols import Note


class Listing:
    """Notes the size of each capture and the names of each tree; refuses captures that begin with "bad"."""

    def __init__(self, claimed: str = "") -> None:
        self._claimed = claimed

    def read_capture(self, source: str, head: bytes, stream: BinaryIO) -> Iterator[Note]:
        content = stream.read()
        assert content.startswith(head)
        yield Note("error" if head.startswith(b"bad") else "info", "", f"{len(content)} bytes")
        yield Note("error" if head.startswith(b"bad") else "info", "", "end")

    def claims(self, name: str) -> bool:
        return bool(self._claimed) and name.startswith(self._claimed)

    def read_tree(self, source: str, tree: MemoryTree) -> Iterator[Note]:
        yield Note("info", "", " ".join(tree.names))


def archive(folder: Path, **members: bytes) -> str:
    path = folder / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name.replace("_", "/"))
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def test_sources_with_error_notes_are_named_once(tmp_path: Path) -> None:
    path = archive(tmp_path, one=b"bad" * 40_000, two=b"good")
    walk = CaptureWalk(Listing())
    texts = [(item.source, item.what.text) for item in walk.run([path]) if isinstance(item.what, Note)]
    assert texts == [
        (f"{path}!one", "120000 bytes"), (f"{path}!one", "end"), (f"{path}!two", "4 bytes"), (f"{path}!two", "end"),
    ]  # fmt: skip
    assert walk.malformed == [f"{path}!one"]


def test_only_claimed_files_become_trees(tmp_path: Path) -> None:
    path = archive(tmp_path, n1_sys_class_a=b"1", n1_sys_bus_b=b"22")
    texts = [(i.source, i.what.text) for i in CaptureWalk(Listing("sys/class")).run([path]) if isinstance(i.what, Note)]
    assert texts == [
        (f"{path}!n1/sys/bus/b", "2 bytes"),
        (f"{path}!n1/sys/bus/b", "end"),
        (f"{path}!n1", "sys/class/a"),
    ]

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flightwatch.collectors.tree import MAX_FILE_BYTES, FolderTree, text, whole_number


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"12\n", 12), (b"-5\n", -5), (b"0\n", 0), (b"", None), (None, None), (b"N/A (no PMA)", None), (b"1_0", None),
        (b"1.5", None), (b"--1", None), (b"9" * 25, None), ("\u0663".encode(), None), (b" 7 ", 7), (b"0x10", None),
        (b"-", None),
    ],
)  # fmt: skip
def test_whole_number_takes_plain_decimals_only(content: bytes | None, expected: int | None) -> None:
    assert whole_number(content) == expected


def test_text_is_one_printable_line_or_nothing() -> None:
    assert text(b"Package  id 0\n") == "Package id 0"
    assert text(b"a\x1b[31mb") is None
    assert text(b"\xff\xfe") is None
    assert text(b" \n") is None
    assert text(None) is None


def test_a_kept_descriptor_shows_new_content_and_survives_removal(tmp_path: Path) -> None:
    file = tmp_path / "temp1_input"
    file.write_text("41000\n")
    tree = FolderTree(str(tmp_path), keep_open=8)
    assert tree.read("temp1_input") == b"41000\n"
    with file.open("r+") as handle:
        handle.write("42000\n")
    assert tree.read("temp1_input") == b"42000\n"
    tree.close()
    file.unlink()
    assert tree.read("temp1_input") is None


def test_only_so_many_descriptors_are_kept(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / str(number)).write_text(str(number))
    before = len(os.listdir("/proc/self/fd"))
    tree = FolderTree(str(tmp_path), keep_open=2)
    assert [tree.read(str(number)) for number in range(6)] == [str(number).encode() for number in range(6)]
    assert len(os.listdir("/proc/self/fd")) == before + 2
    tree.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_fifo_a_folder_and_a_missing_file_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    tree = FolderTree(str(tmp_path))
    assert [tree.read(name) for name in ("fifo", "folder", "absent", "a\0b")] == [None, None, None, None]


def test_a_large_file_is_cut(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 10))
    (tmp_path / "page").write_bytes(b"y" * 10_000)
    tree = FolderTree(str(tmp_path))
    assert len(tree.read("large") or b"") == MAX_FILE_BYTES
    assert tree.read("page") == b"y" * 10_000


def test_names_that_are_not_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")).write_text("")
    (tmp_path / "esc\x1b").write_text("")
    assert list(FolderTree(str(tmp_path)).listdir("")) == ["good"]
    assert list(FolderTree(str(tmp_path)).listdir("absent")) == []

"""The walk of `flightwatch inspect`: files, folders, archives, limits, damage."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import tarfile
import zipfile
from pathlib import Path

import pytest

from flightwatch.collectors.capture_walk import Item
from flightwatch.collectors.captures import tar_stream
from flightwatch.collectors.captures.unpacking import Budget, DamagedStream, LimitExceeded, unpacked
from flightwatch.collectors.inspect import Inspection
from flightwatch.core.errors import ConfigError
from flightwatch.core.protocols import Note, Row
from flightwatch.core.vocabulary import ExitCode

XID = b"NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n"
BROKEN = b'{"node": "a", "x/y/z/steptime_a": 1.0, "x/q/w/return_code": 0}\n{"node": "b", "x/y/z/st'


class Seen:
    def __init__(self, *paths: Path | str, **arguments: object) -> None:
        inspection = Inspection(**arguments)  # type: ignore[arg-type]
        self.items: list[Item] = list(inspection.run([str(path) for path in paths]))
        self.exit_code = inspection.exit_code
        self.unrecognised = inspection.unrecognised

    @property
    def rows(self) -> list[tuple[str, Row]]:
        return [(item.source, item.what) for item in self.items if isinstance(item.what, Row)]

    @property
    def notes(self) -> list[tuple[str, str, str]]:
        return [(i.source, i.what.level, i.what.text) for i in self.items if isinstance(i.what, Note)]

    def says(self, words: str) -> bool:
        return any(words in text for _, _, text in self.notes)


def tar_of(members: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_one_file(tmp_path: Path) -> None:
    seen = Seen(put(tmp_path, "a.log", XID), at_ms=1000, node="n")
    ((source, row),) = seen.rows
    assert source.endswith("a.log")
    assert (row.values["code"], row.values["ts"], row.values["node"]) == ("xid:79", 1000, "n")
    assert seen.exit_code is ExitCode.DONE


def test_one_file_that_nobody_knows(tmp_path: Path) -> None:
    seen = Seen(put(tmp_path, "a.bin", bytes(range(256))))
    assert seen.exit_code is ExitCode.UNRECOGNISED
    assert seen.notes[0][1] == "warning"


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    seen = Seen(put(tmp_path, "a.out", b""))
    assert seen.exit_code is ExitCode.UNRECOGNISED
    assert seen.says("empty")


def test_a_malformed_capture(tmp_path: Path) -> None:
    seen = Seen(put(tmp_path, "a.jsonl", BROKEN))
    assert seen.exit_code is ExitCode.MALFORMED
    assert len(seen.rows) == 2


def test_a_rejected_line_is_not_malformed(tmp_path: Path) -> None:
    seen = Seen(put(tmp_path, "a.log", XID + b"NVRM: Xid (invalid): x\n"))
    assert seen.exit_code is ExitCode.DONE
    assert len(seen.notes) == 1


def test_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "b/a.log", XID)
    put(tmp_path, "b/deep/er/b.log", XID)
    put(tmp_path, "b/readme.bin", b"\0\1\2")
    os.symlink("a.log", tmp_path / "b" / "link.log")
    os.mkfifo(tmp_path / "b" / "pipe")
    seen = Seen(tmp_path / "b")
    assert [Path(source).name for source, _ in seen.rows] == ["a.log", "b.log"]
    assert seen.exit_code is ExitCode.DONE
    assert seen.says("symbolic link")
    assert seen.says("pipe")
    assert seen.says("not recognised")


def test_a_folder_without_any_capture(tmp_path: Path) -> None:
    put(tmp_path, "b/x", b"\0\1\2")
    assert Seen(tmp_path / "b").exit_code is ExitCode.UNRECOGNISED
    assert Seen(tmp_path / "b").notes


def test_a_folder_with_a_malformed_member(tmp_path: Path) -> None:
    put(tmp_path, "b/a.log", XID)
    put(tmp_path, "b/b.jsonl", BROKEN)
    assert Seen(tmp_path / "b").exit_code is ExitCode.MALFORMED


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_tar_archives(tmp_path: Path, mode: str, kind: int) -> None:
    long_name = "n" * 60 + "/" + "m" * 80 + ("" if kind == tarfile.USTAR_FORMAT else "é" * 60) + ".log"
    path = tmp_path / "x.tar"
    with tarfile.open(path, mode, format=kind) as archive:  # type: ignore[call-overload]
        for name in ("./one.log", long_name):
            info = tarfile.TarInfo(name)
            info.size = len(XID)
            archive.addfile(info, io.BytesIO(XID))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    seen = Seen(path)
    assert [source for source, _ in seen.rows] == [f"{path}!one.log", f"{path}!{long_name}"]
    assert seen.says("a symbolic link, skipped")
    assert seen.exit_code is ExitCode.DONE


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files(tmp_path: Path, pack: object) -> None:
    seen = Seen(put(tmp_path, "a.log.z", pack(XID) + pack(XID)))  # type: ignore[operator]
    assert len(seen.rows) == 2


def test_zstandard(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    seen = Seen(put(tmp_path, "a.log.zst", zstandard.ZstdCompressor().compress(XID * 1000)))
    assert len(seen.rows) == 1000


def test_zip_archives(tmp_path: Path) -> None:
    seen = Seen(put(tmp_path, "a.zip", zip_of({"d/a.log": XID, "../b.log": XID, "c.bin": b"\0\1"})))
    assert [source.rsplit("!")[-1] for source, _ in seen.rows] == ["d/a.log", "b.log"]


def test_archives_inside_archives(tmp_path: Path) -> None:
    inner = zip_of({"a.log": XID})
    nested = gzip.compress(tar_of({"in.zip": inner, "b.log": XID}))
    path = put(tmp_path, "a.tar.gz", nested)
    assert [source for source, _ in Seen(path).rows] == [f"{path}!in.zip!a.log", f"{path}!b.log"]


def test_nesting_is_limited(tmp_path: Path) -> None:
    data = XID
    for _ in range(5):
        data = tar_of({"x": data})
    seen = Seen(put(tmp_path, "a.tar", data))
    assert not seen.rows
    assert seen.says("nested deeper")
    three = Seen(put(tmp_path, "b.tar", tar_of({"x": tar_of({"x": tar_of({"x": XID})})})))
    assert len(three.rows) == 1


def test_members_are_limited(tmp_path: Path) -> None:
    seen = Seen(put(tmp_path, "a.tar", tar_of({f"{n}": b"" for n in range(10_001)})))
    assert seen.exit_code is ExitCode.MALFORMED
    assert seen.says("10,000 members")


def test_bombs_end(tmp_path: Path) -> None:
    bomb = gzip.compress(XID * 3 + b"\n" * 60_000_000, 9)
    seen = Seen(put(tmp_path, "a.gz", bomb))
    assert seen.exit_code is ExitCode.MALFORMED
    assert seen.says("times its size")
    assert len(seen.rows) == 3


def test_the_unpacked_total_is_limited() -> None:
    budget = Budget(unpacked_bytes=1000)
    with pytest.raises(LimitExceeded, match="20 GB"):
        list(unpacked(io.BytesIO(gzip.compress(os.urandom(5000))), "gz", budget))


@pytest.mark.parametrize("cut", [5, 50, -9])
def test_truncated_compression(tmp_path: Path, cut: int) -> None:
    chance = random.Random(1)
    body = b"".join(XID[:40] + bytes(str(chance.random()), "ascii") + b"\n" for _ in range(2000))
    seen = Seen(put(tmp_path, "a.gz", gzip.compress(XID + body)[:cut]))
    assert seen.exit_code is ExitCode.MALFORMED
    assert seen.says("truncated") or seen.says("damaged")


def test_a_damaged_tar_keeps_what_came_before(tmp_path: Path) -> None:
    data = bytearray(tar_of({"a.log": XID, "b.log": XID, "c.log": XID}))
    data[1024 + 20 : 1024 + 40] = b"x" * 20
    seen = Seen(put(tmp_path, "a.tar", bytes(data)))
    assert len(seen.rows) == 1
    assert seen.exit_code is ExitCode.MALFORMED


def test_a_damaged_zip_member_leaves_the_others(tmp_path: Path) -> None:
    data = bytearray(zip_of({"a.log": XID, "b.log": XID}))
    at = data.index(b"a.log") + 8
    data[at : at + 10] = b"\xff" * 10
    seen = Seen(put(tmp_path, "a.zip", bytes(data)))
    assert [source.rsplit("!")[-1] for source, _ in seen.rows] == ["b.log"]
    assert seen.exit_code is ExitCode.MALFORMED


def test_a_truncated_zip(tmp_path: Path) -> None:
    seen = Seen(put(tmp_path, "a.zip", zip_of({"a.log": XID})[:-30]))
    assert seen.exit_code is ExitCode.MALFORMED
    assert seen.says("table of contents")


def test_headers_that_lie(tmp_path: Path) -> None:
    header = bytearray(tar_of({"a.log": XID})[:512])
    header[124:136] = b"77777777777\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    seen = Seen(put(tmp_path, "a.tar", bytes(header) + XID))
    assert len(seen.rows) == 1
    assert seen.exit_code is ExitCode.MALFORMED
    with pytest.raises(tar_stream.TarDamage):
        list(tar_stream.members(io.BytesIO(b"x" * 512)))


def test_recorded_trees_are_read_as_trees(tmp_path: Path) -> None:
    chip = {
        "n1/sys/class/hwmon/hwmon0/name": b"coretemp\n",
        "n1/sys/class/hwmon/hwmon0/temp1_input": b"43850\n",
        "n1/sys/class/hwmon/hwmon0/temp1_label": b"Core 0\n",
        "n1/dmesg.txt": XID,
    }
    for path in (put(tmp_path, "a.tar", tar_of(chip)), put(tmp_path, "a.zip", zip_of(chip))):
        seen = Seen(path)
        sensors = [(source, row.values) for source, row in seen.rows if row.table == "sensor_samples"]
        assert [(source, values["value"]) for source, values in sensors] == [(f"{path}!n1", 43.85)]
        assert any(row.table == "events" for _, row in seen.rows)
    for name, data in chip.items():
        put(tmp_path / "folder", name, data)
    seen = Seen(tmp_path / "folder")
    assert [row.values["value"] for _, row in seen.rows if row.table == "sensor_samples"] == [43.85]


def test_several_paths(tmp_path: Path) -> None:
    good, bad = put(tmp_path, "a.log", XID), put(tmp_path, "b.bin", b"\0\1")
    assert Seen(good, bad).exit_code is ExitCode.DONE
    assert Seen(good, bad).unrecognised == [str(bad)]


@pytest.mark.parametrize("path", ["missing.log", "/dev/null"])
def test_paths_that_cannot_be_read(path: str) -> None:
    with pytest.raises(ConfigError):
        Seen(path)


def test_concatenated_and_padded_gzip() -> None:
    data = gzip.compress(b"one") + gzip.compress(b"two") + b"\0" * 512
    assert unpacked(io.BytesIO(data), "gz", Budget()).read() == b"onetwo"
    cut = unpacked(io.BytesIO(gzip.compress(b"one")[:-4]), "gz", Budget())
    assert cut.read() == b"one"
    with pytest.raises(DamagedStream):
        cut.read()

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flightwatch.collectors.identity import (
    checked_node_name,
    load_identity,
    make_identity,
)
from flightwatch.core.errors import ConfigError, Refused


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "state" / "agent")
    assert load_identity(folder) is None
    made = make_identity(folder)
    assert os.stat(f"{folder}/key").st_mode & 0o777 == 0o600
    loaded = load_identity(folder)
    assert loaded is not None
    assert loaded.public_key == made.public_key
    with pytest.raises(Refused, match="has a key already"):
        make_identity(folder)


@pytest.mark.parametrize("content", ["", "zz", "ab" * 31, "ab" * 33, "\xff\xfe"])
def test_a_damaged_key_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(ConfigError, match="not a key"):
        load_identity(str(tmp_path))


def test_a_key_that_others_can_read_or_that_is_a_link_is_refused(tmp_path: Path) -> None:
    make_identity(str(tmp_path))
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(ConfigError, match="only its owner"):
        load_identity(str(tmp_path))
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "key").rename(tmp_path / "elsewhere")
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot read"):
        load_identity(str(tmp_path))


@pytest.mark.parametrize("name", ["node-17", "a", "gpu.rack_3.example", "0" * 253])
def test_node_names(name: str) -> None:
    assert checked_node_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-rf", "a b", "a;reboot", "$(reboot)", "`id`", "a/b", "../x", "a\n", "\u00e9", "0" * 254, ".a"]
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match=r"flightwatch\.node = .* is not a node name"):
        checked_node_name(name)

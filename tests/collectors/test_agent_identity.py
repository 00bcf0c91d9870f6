from __future__ import annotations

import os
from pathlib import Path

import pytest

from flightwatch.collectors.identity import (
    Identity,
    checked_node_name,
    identity_of,
    load_identity,
    make_identity,
)
from flightwatch.core.errors import ConfigError, Refused

#: RFC 8032, section 7.1, tests 1 and 3: seed, public key, message, signature.
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
            "d25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
            "4a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
]


@pytest.mark.parametrize(("seed", "public", "message", "signature"), VECTORS)
def test_keys_and_signatures_are_those_of_the_standard(seed: str, public: str, message: str, signature: str) -> None:
    identity = identity_of(bytes.fromhex(seed))
    assert identity.public_key.hex() == public
    assert identity.sign(bytes.fromhex(message)).hex() == signature


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "state" / "agent")
    assert load_identity(folder) is None
    made = make_identity(folder)
    assert os.stat(f"{folder}/key").st_mode & 0o777 == 0o600
    loaded = load_identity(folder)
    assert isinstance(loaded, Identity)
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

from __future__ import annotations

import pytest

from flightwatch.core import ed25519
from flightwatch.core.ed25519 import signing_key, verify

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
    identity = signing_key(bytes.fromhex(seed))
    assert identity.public_key.hex() == public
    assert identity.sign(bytes.fromhex(message)).hex() == signature
    assert verify(identity.public_key, bytes.fromhex(message), bytes.fromhex(signature))


def test_another_message_key_or_signature_is_refused() -> None:
    key, other = signing_key(b"1" * 32), signing_key(b"2" * 32)
    signature = key.sign(b"drain node 7")
    assert verify(key.public_key, b"drain node 7", signature)
    assert not verify(key.public_key, b"drain node 8", signature)
    assert not verify(other.public_key, b"drain node 7", signature)
    assert not verify(key.public_key, b"drain node 7", bytes([signature[0] ^ 1]) + signature[1:])
    assert not verify(key.public_key, b"drain node 7", signature[:-1])
    assert not verify(b"", b"drain node 7", signature)


def test_both_libraries_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with_openssl = signing_key(b"s" * 32)
    signature = with_openssl.sign(b"message")
    monkeypatch.setattr(ed25519, "_openssl", lambda: None)
    without = signing_key(b"s" * 32)
    assert without.public_key == with_openssl.public_key
    assert without.sign(b"message") == signature
    assert verify(without.public_key, b"message", signature)
    assert not verify(without.public_key, b"other", signature)

"""A batch counts only when its signature fits a key of the node it names."""

from __future__ import annotations

import pytest

from flightwatch.core import ed25519
from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord
from flightwatch.pipeline.batch import BatchHeader
from flightwatch.pipeline.ingest.signatures import KEYS_SECONDS, SignatureCheck

A, B = ed25519.signing_key(b"a" * 32), ed25519.signing_key(b"b" * 32)
KEY_A, KEY_B = A.public_key.hex(), B.public_key.hex()


def header(node: str) -> BatchHeader:
    return BatchHeader("agent", "spool", "samples", 1, node, "c", 0, "0")


def test_enrolled_nodes_must_sign_with_their_own_key() -> None:
    check = SignatureCheck(lambda: {"n1": frozenset({KEY_A}), "n2": frozenset({KEY_B})}, ManualClock(), required=False)
    check(header("n1"), b"body", A.sign(b"body"))
    for node, signature, reason in (
        ("n1", B.sign(b"body"), "does not fit any valid key of node n1"),
        ("n1", A.sign(b"other"), "does not fit"),
        ("n1", None, "unsigned, but node n1 has enrolled"),
        ("n2", A.sign(b"body"), "does not fit any valid key of node n2"),
    ):
        with pytest.raises(BadRecord, match=reason):
            check(header(node), b"body", signature)


def test_unknown_nodes_are_accepted_only_where_signatures_are_not_required() -> None:
    SignatureCheck(dict, ManualClock(), required=False)(header("new"), b"body", None)
    strict = SignatureCheck(dict, ManualClock(), required=True)
    with pytest.raises(BadRecord, match="unsigned and node new has not enrolled"):
        strict(header("new"), b"body", None)
    with pytest.raises(BadRecord, match="has not enrolled"):
        strict(header("new"), b"body", A.sign(b"body"))


def test_a_revoked_key_stops_counting_within_seconds() -> None:
    keys = {"n1": frozenset({KEY_A})}
    clock = ManualClock()
    check = SignatureCheck(lambda: dict(keys), clock, required=False)
    signature = A.sign(b"body")
    check(header("n1"), b"body", signature)
    keys["n1"] = frozenset()
    check(header("n1"), b"body", signature)
    clock.advance(KEYS_SECONDS + 0.1)
    with pytest.raises(BadRecord, match="does not fit"):
        check(header("n1"), b"body", signature)

"""Does a batch come from the node it names? Checked against the keys that nodes enrolled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from flightwatch.core.clock import Clock
from flightwatch.core.ed25519 import verify
from flightwatch.core.errors import BadRecord
from flightwatch.pipeline.batch import BatchHeader

#: How long keys are remembered: a new key counts, and a revoked one stops counting, after this at the latest.
KEYS_SECONDS = 10.0


class SignatureCheck:
    """Refuses a batch whose signature does not fit its node's keys.

    A node that has enrolled must sign; a node that has not may send unsigned batches unless `required`.

    Parameters
    ----------
    keys: returns valid public keys (64 hexadecimal digits) by node; an enrolled node without a valid key has an
        empty set.
    required: refuse unsigned batches of nodes that never enrolled, too.
    """

    def __init__(self, keys: Callable[[], Mapping[str, frozenset[str]]], clock: Clock, *, required: bool) -> None:
        self._read_keys, self._clock, self._required = keys, clock, required
        self._lock = threading.Lock()
        self._keys: Mapping[str, frozenset[str]] = {}
        self._read_at = float("-inf")

    def __call__(self, header: BatchHeader, signed: bytes, signature: bytes | None) -> None:
        """Check one batch.

        Parameters
        ----------
        signed: the bytes that the signature covers.
        signature: None when the batch is unsigned.

        Raises
        ------
        BadRecord: the batch must not be stored, with the reason.
        """
        keys = self._current().get(header.node)
        if signature is None:
            if keys is not None:
                raise BadRecord(f"the batch is unsigned, but node {header.node} has enrolled a key")
            if self._required:
                raise BadRecord(f"the batch is unsigned and node {header.node} has not enrolled")
            return
        if keys is None:
            if self._required:
                raise BadRecord(
                    f"node {header.node} has not enrolled: `flightwatch agent enroll` prints its public key"
                )
            return
        if not any(verify(bytes.fromhex(key), signed, signature) for key in keys):
            raise BadRecord(f"the signature does not fit any valid key of node {header.node}")

    def _current(self) -> Mapping[str, frozenset[str]]:
        with self._lock:
            now = self._clock.monotonic_s()
            if now - self._read_at > KEYS_SECONDS:
                self._keys = self._read_keys()
                self._read_at = now
            return self._keys

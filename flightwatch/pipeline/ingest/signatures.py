"""Which batches are believed: signed by a key that the control database lists for their node."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.ed25519 import verify
from flightwatch.core.errors import BadRecord, FlightwatchError
from flightwatch.pipeline.batch import BatchHeader

logger = logging.getLogger(__name__)

_FRESH_SECONDS = 30.0
_SOONEST_SECONDS = 2.0


class SignatureCheck:
    """Refuses batches whose signature does not fit their node. Thread-safe. Costs about 0.1 ms a signed message.

    A signed batch must carry a valid signature of one of its node's keys. An unsigned one is taken only from
    a node that has no key, and only while signatures are not required.

    Parameters
    ----------
    keys: returns the valid public keys (hexadecimal) of every enrolled node; asked at most every 2 s.
    required: refuse unsigned batches of unknown nodes too.
    """

    def __init__(
        self, keys: Callable[[], Mapping[str, frozenset[str]]], *, required: bool, clock: Clock | None = None
    ) -> None:
        self._load = keys
        self._required = required
        self._clock = clock or SystemClock()
        self._keys: Mapping[str, frozenset[str]] | None = None
        self._loaded_at_s = float("-inf")
        self._lock = threading.Lock()

    def __call__(self, header: BatchHeader, body: bytes, signature: bytes | None) -> None:
        """Check one batch.

        Raises
        ------
        BadRecord: it must not be stored. TransientError: the keys have never been readable yet.
        """
        keys = self._keys_of(header.node, _FRESH_SECONDS)
        if signature is None:
            if keys is None and not self._required:
                return
            raise BadRecord(f"the batch of node {header.node!r} is not signed")
        if self._fits(keys, body, signature):
            return
        # The key may have been enrolled a moment ago.
        if self._fits(self._keys_of(header.node, _SOONEST_SECONDS), body, signature):
            return
        raise BadRecord(f"the signature is not by a key of node {header.node!r}")

    @staticmethod
    def _fits(keys: frozenset[str] | None, body: bytes, signature: bytes) -> bool:
        return any(verify(bytes.fromhex(key), body, signature) for key in keys or ())

    def _keys_of(self, node: str, age_seconds: float) -> frozenset[str] | None:
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._keys is None or now_s - self._loaded_at_s > age_seconds:
                try:
                    self._keys = self._load()
                    self._loaded_at_s = now_s
                except FlightwatchError as error:
                    if self._keys is None:
                        raise
                    # Known keys go on working while the control database is away.
                    logger.warning("agents' keys cannot be read again: %s", error)
            return self._keys.get(node)

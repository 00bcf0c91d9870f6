"""How often one person, token or stranger may ask this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from flightwatch.core.clock import Clock
from flightwatch.dashboard.access.denied import Denied

#: Buckets kept; the least recently used goes first.
_MOST_BUCKETS = 20_000
#: Attempts of a stranger to come in, a minute and address.
STRANGER_PER_MINUTE = 60
#: Refusals of one actor written to the audit log a minute; the next one after it says how many were left out.
REFUSALS_PER_MINUTE = 20


@dataclass
class _Bucket:
    tokens: float
    at_s: float


class TokenBuckets:
    """Token buckets by key, bounded in number. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, key: str, rate_per_second: float, burst: float) -> float:
        """Take one token; return 0 when there was one, else the seconds until there is."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            bucket = self._buckets.pop(key, None) or _Bucket(burst, now_s)
            bucket.tokens = min(burst, bucket.tokens + (now_s - bucket.at_s) * rate_per_second)
            bucket.at_s = now_s
            self._buckets[key] = bucket
            while len(self._buckets) > _MOST_BUCKETS:
                self._buckets.popitem(last=False)
            if bucket.tokens < 1:
                return (1 - bucket.tokens) / rate_per_second
            bucket.tokens -= 1
            return 0.0


class Limits:
    """The limits of requests, of writes and of strangers.

    Parameters
    ----------
    requests_per_second, writes_per_minute: of one viewer, sustained; four seconds' and half a minute's worth at once.
    """

    def __init__(self, clock: Clock, requests_per_second: int, writes_per_minute: int) -> None:
        self._buckets = TokenBuckets(clock)
        self._requests_per_second = requests_per_second
        self._writes_per_minute = writes_per_minute

    def check(self, subject: str, *, is_write: bool) -> None:
        """Count a request of a viewer. Raises Denied (429) when there were too many."""
        self._take(f"request {subject}", self._requests_per_second, 4.0 * self._requests_per_second)
        if is_write:
            self._take(f"write {subject}", self._writes_per_minute / 60, max(1.0, self._writes_per_minute / 2))

    def check_stranger(self, address: str | None, path: str) -> None:
        """Count a request on a public path; what only tells that we live is not counted."""
        if path in ("/healthz", "/readyz", "/login/style.css"):
            return
        self._take(f"stranger {address}", STRANGER_PER_MINUTE / 60, STRANGER_PER_MINUTE)

    def failed_login(self, address: str | None) -> None:
        """Count a wrong token or session. Raises Denied (429) when there were too many."""
        self._take(f"failed {address}", STRANGER_PER_MINUTE / 60, STRANGER_PER_MINUTE)

    def may_audit(self, actor: str, address: str | None) -> bool:
        """Say whether a refusal is still written: a flood of them must not fill the control database."""
        return self._buckets.take(f"audit {actor} {address}", REFUSALS_PER_MINUTE / 60, REFUSALS_PER_MINUTE) == 0

    def _take(self, key: str, rate_per_second: float, burst: float) -> None:
        wait_seconds = self._buckets.take(key, rate_per_second, burst)
        if wait_seconds > 0:
            again = max(1, round(wait_seconds))
            raise Denied(429, "rate_limited", f"too many requests: try again in {again} s", None, again)

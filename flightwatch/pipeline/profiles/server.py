"""The control server of profiles: sends requests to nodes, takes their news and traces, keeps the projection.

One process does this at a time (lease `profiles`); another takes over within half a minute. Everything it
takes from the bus can be taken twice.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flightwatch.core.clock import Clock
from flightwatch.core.errors import BadRecord, FlightwatchError, StaleGeneration, TransientError
from flightwatch.core.logs import Occasionally
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.batch import BatchHeader
from flightwatch.pipeline.blobs import Chunk, chunk_of, split
from flightwatch.pipeline.bus.base import Bus, Message, Subscription
from flightwatch.pipeline.codec.read import open_message, signature_of
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.leases import Lease, Leases
from flightwatch.pipeline.profiles.assembly import TraceFolder
from flightwatch.pipeline.profiles.dispatch import Dispatcher
from flightwatch.pipeline.profiles.landing import Landing
from flightwatch.pipeline.profiles.object_store import store_of
from flightwatch.pipeline.profiles.projection import Projection
from flightwatch.pipeline.profiles.records import BLOCKS, Profiles, RankNews
from flightwatch.pipeline.profiles.settings import ProfilesSettings
from flightwatch.pipeline.store.client import Store

logger = logging.getLogger(__name__)

GROUP = "flightwatch-profiles"
ROLE = "profiles"
#: Kinds of blobs that agents send (see the agent's profiler).
TRACE_KIND, PROGRESS_KIND, ROSTER_KIND = "profile_trace", "profile_progress", "profile_roster"
LEASE_SECONDS = 30.0
_RENEW_SECONDS = 10.0
_POLL_SECONDS = 0.3
_PARTS_SECONDS = 86_400.0
_NEWS_BYTES = 512_000
_MOST_ENTRIES = 512

Verify = Callable[[BatchHeader, bytes, bytes | None], None]


class ProfileServer:
    """Serves profile requests until told to stop.

    Parameters
    ----------
    sign: Ed25519 signature by the control server's key.
    folder: where traces are kept.
    verify: checks agents' signatures; None accepts all (single machine).
    """

    def __init__(
        self,
        bus: Bus,
        control: Control,
        store: Store,
        sign: Callable[[bytes], bytes],
        folder: Path,
        settings: ProfilesSettings,
        clock: Clock,
        *,
        cluster: str,
        verify: Verify | None = None,
    ) -> None:
        self._bus = bus
        self._leases = Leases(control)
        self._clock = clock
        self._verify = verify
        self._profiles = Profiles(control)
        self._folder = TraceFolder(folder)
        self._dispatcher = Dispatcher(self._profiles, bus, store, sign, settings, clock)
        self._projection = Projection(self._profiles, store, cluster)
        target = store_of(settings.s3_endpoint, settings.s3_region, clock)
        self._landing = Landing(self._profiles, target, settings.object_stores, clock)
        self._trouble = Occasionally(60.0)
        self._holder = f"{os.uname().nodename}:{os.getpid()}"

    def run(self, stop: threading.Event) -> None:
        """Wait for the lease, then serve; trouble with bus, store or database is waited out."""
        while not stop.is_set():
            try:
                lease = self._leases.acquire(ROLE, self._holder, LEASE_SECONDS)
                if lease is not None:
                    self._serve(lease, stop)
                    continue
            except FlightwatchError as error:
                if self._trouble.due():
                    logger.warning("profiles wait: %s", error)
            stop.wait(2.0)

    def _serve(self, lease: Lease, stop: threading.Event) -> None:
        subscription = self._bus.subscribe([Topic.BLOBS.value], GROUP)
        renew_at_s = self._clock.monotonic_s() + _RENEW_SECONDS
        try:
            while not stop.is_set():
                self.step(subscription)
                if self._clock.monotonic_s() >= renew_at_s:
                    lease = self._leases.renew(lease, LEASE_SECONDS)
                    renew_at_s = self._clock.monotonic_s() + _RENEW_SECONDS
                    self._folder.sweep(_PARTS_SECONDS, self._clock.now_ms() / 1000)
        finally:
            subscription.close()
        self._leases.release(lease)

    def step(self, subscription: Subscription, timeout_seconds: float = _POLL_SECONDS) -> None:
        """Take what came, send what is asked for, write what changed."""
        for message in subscription.poll(8_000_000, timeout_seconds):
            self.take(message)
            try:
                subscription.commit(message.partition, message.offset + 1)
            except StaleGeneration:
                break  # whoever has the partition now takes it again
        self._dispatcher.step()
        self._landing.step()
        self._projection.step()

    def take(self, message: Message) -> None:
        """Take one message of the blobs lane; what is damaged or not ours is dropped.

        Raises
        ------
        TransientError: disk or database is away; the message is taken again.
        """
        try:
            header_bytes, data = split(message.value)
            opened = open_message(header_bytes)
            header = opened.header
            if self._verify is not None:
                self._verify(header, *signature_of(header_bytes))
            if header.attributes.get("kind") not in (TRACE_KIND, PROGRESS_KIND, ROSTER_KIND):
                return
            chunk = chunk_of(header, data)
            if chunk.kind == TRACE_KIND:
                self._take_trace(chunk, header.node)
            elif chunk.kind == PROGRESS_KIND:
                self._take_progress(_document(chunk), header.node)
            else:
                self._take_roster(_document(chunk), header.node)
        except BadRecord as error:
            if self._trouble.due():
                logger.warning("a message of the blobs lane is dropped: %s", error)

    def _take_roster(self, document: Mapping[str, Any], node: str) -> None:
        ranks = document.get("ranks")
        entries = [entry for entry in map(_entry, ranks if isinstance(ranks, list) else ()) if entry is not None]
        self._profiles.see_targets(node, entries[:_MOST_ENTRIES])

    def _take_progress(self, document: Mapping[str, Any], node: str) -> None:
        name, rank = document.get("request"), document.get("rank")
        if not isinstance(name, str) or type(rank) is not int or not self._belongs(name, rank, node):
            return
        state, first = document.get("state"), document.get("first_step")
        reason = document.get("reason")
        if state == "done" and not self._has_result(name, rank):
            state, reason = "failed", "the trace was lost on its way"
        self._profiles.tell(
            name,
            [
                RankNews(
                    rank=rank,
                    state=str(state),
                    reason=reason if isinstance(reason, str) else "",
                    first_step=first if type(first) is int else None,
                )
            ],
        )

    def _take_trace(self, chunk: Chunk, node: str) -> None:
        name, rank_text = chunk.attributes.get("request", ""), chunk.attributes.get("rank", "")
        rank = int(rank_text) if rank_text.isascii() and rank_text.isdigit() else -1
        if not self._belongs(name, rank, node):
            return
        request = self._profiles.get(name)
        try:
            whole = self._folder.take(chunk, name, rank, request["max_bytes"] // len(request["ranks"]))
        except BadRecord as error:
            self._profiles.tell(name, [RankNews(rank, "failed", str(error))])
            raise
        if whole is not None:
            news = RankNews(rank, "sent", "", None, None, str(whole.path), whole.sha256, whole.bytes)
            self._profiles.tell(name, [news])

    def _rank_row(self, name: str, rank: int) -> dict[str, Any] | None:
        try:
            request = self._profiles.get(name)
        except TransientError:
            raise
        except FlightwatchError:
            return None
        return next((row for row in request["ranks"] if row["rank"] == rank), None)

    def _belongs(self, name: str, rank: int, node: str) -> bool:
        """Say whether a node was asked for this rank: no node speaks for another."""
        row = self._rank_row(name, rank)
        return row is not None and row["node"] == node

    def _has_result(self, name: str, rank: int) -> bool:
        """Say whether a rank's trace is here; times of blocks come as rows, so nothing is waited for."""
        request = self._profiles.get(name)
        row = self._rank_row(name, rank)
        return bool(request["options"].get(BLOCKS)) or (row is not None and row["artifact"] is not None)


def _document(chunk: Chunk) -> Mapping[str, Any]:
    if chunk.index or not chunk.last or len(chunk.data) > _NEWS_BYTES:
        raise BadRecord(f"{chunk.kind} of more than one chunk")
    try:
        document = json.loads(chunk.data)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{chunk.kind} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadRecord(f"{chunk.kind} is not an object")
    return document


def _entry(given: Any) -> dict[str, Any] | None:
    """Return the known parts of one roster entry, None when it is malformed."""
    if not isinstance(given, dict):
        return None
    texts = {key: given.get(key) for key in ("job", "run", "problem")}
    rank = given.get("rank")
    if not all(isinstance(text, str) and len(text) <= 1000 for text in texts.values()):
        return None
    if type(rank) is not int or not 0 <= rank < 10_000_000:
        return None
    return texts | {"rank": rank}

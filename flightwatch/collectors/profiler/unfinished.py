"""Requests that have not ended, on disk: an agent that was killed in the middle goes on with them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace

from flightwatch.collectors.profiler.requests import ENDED, ProfileRequest, Progress

logger = logging.getLogger(__name__)


class Unfinished:
    """One file a request, with the ranks that have not ended. Thread-safe.

    Parameters
    ----------
    folder: the agent's own; it is made when the first request comes.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._requests: dict[str, tuple[ProfileRequest, int]] = {}
        self._lock = threading.Lock()

    def add(self, request: ProfileRequest, now_ms: int) -> None:
        """Remember a request; without room on the disk it is not remembered, and goes on all the same."""
        with self._lock:
            if request.id not in self._requests:
                self._requests[request.id] = (request, now_ms)
                self._write(request, now_ms)

    def take(self, progress: Progress) -> None:
        """Forget a rank that ended, and the request with its last one."""
        if progress.state not in ENDED:
            return
        with self._lock:
            known = self._requests.get(progress.request)
            if known is None or progress.rank not in known[0].ranks:
                return
            left = replace(known[0], ranks=tuple(rank for rank in known[0].ranks if rank != progress.rank))
            if left.ranks:
                self._requests[left.id] = (left, known[1])
                self._write(left, known[1])
                return
            del self._requests[left.id]
            with contextlib.suppress(OSError):
                os.unlink(self._path(left.id))

    def left_behind(self) -> Iterator[tuple[ProfileRequest, int]]:
        """Yield the requests of a former agent and when they came; damaged files are removed."""
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return
        for name in names:
            path = os.path.join(self._folder, name)
            try:
                with open(path, encoding="utf-8") as file:
                    found = json.load(file)
                begun_ms = int(found.pop("begun_ms"))
                request = ProfileRequest(**found | {"ranks": tuple(int(rank) for rank in found["ranks"])})
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                logger.warning("%s is no request and is removed: %s", path, error)
                with contextlib.suppress(OSError):
                    os.unlink(path)
                continue
            with self._lock:
                self._requests[request.id] = (request, begun_ms)
            yield request, begun_ms

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.json")

    def _write(self, request: ProfileRequest, begun_ms: int) -> None:
        path = self._path(request.id)
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with open(
                os.open(f"{path}.new", os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600),
                "w",
                encoding="utf-8",
            ) as file:
                json.dump(asdict(request) | {"begun_ms": begun_ms}, file)
            os.replace(f"{path}.new", path)
        except OSError as error:
            logger.warning("profile %s would be lost with this agent: %s", request.id, error)

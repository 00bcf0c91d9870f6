"""Moves traces that arrived into the object store their request names."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flightwatch.core.clock import Clock
from flightwatch.core.errors import BadRecord, ConfigError, Refused, TransientError
from flightwatch.pipeline.profiles.object_store import ObjectStore, checked_place
from flightwatch.pipeline.profiles.records import Profiles

logger = logging.getLogger(__name__)

#: A service that is away is asked again so often.
AGAIN_SECONDS = 15.0


class Landing:
    """Uploads one trace after the other; a trace that cannot be moved stays in the folder.

    Parameters
    ----------
    allowed: addresses at or below which traces may be stored.
    """

    def __init__(self, profiles: Profiles, store: ObjectStore, allowed: Sequence[str], clock: Clock) -> None:
        self._profiles = profiles
        self._store = store
        self._allowed = tuple(allowed)
        self._clock = clock
        self._not_before_s = 0.0

    def step(self) -> None:
        """Move the next trace that is here and belongs elsewhere. Raises TransientError when the database is away."""
        if not self._allowed or self._clock.monotonic_s() < self._not_before_s:
            return
        for request in self._profiles.to_land():
            for row in request["ranks"]:
                if row["artifact"] and not row["artifact"].startswith("s3://"):
                    self._move(request, row)
                    return
        self._not_before_s = self._clock.monotonic_s() + 2.0

    def _move(self, request: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        path = Path(row["artifact"])
        try:
            place = checked_place(str(request["options"]["to"]), self._allowed)
            target = f"{place}/{request['id']}/{path.name}"
            self._store.put(target, path, row["sha256"])
        except TransientError as error:
            logger.warning("trace of rank %d of profile %s waits: %s", row["rank"], request["id"], error)
            self._not_before_s = self._clock.monotonic_s() + AGAIN_SECONDS
            return
        except (Refused, ConfigError, BadRecord, OSError) as error:
            logger.error("trace of rank %d of profile %s stays in %s: %s", row["rank"], request["id"], path, error)
            self._profiles.landed(request["id"], row["rank"], str(path), f"stays in the folder: {error}")
            return
        self._profiles.landed(request["id"], row["rank"], target, "")
        with contextlib.suppress(OSError):
            path.unlink()

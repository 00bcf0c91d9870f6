"""Carries out erasures of simulations in the process that owns the store."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flightwatch.core.errors import FlightwatchError
from flightwatch.pipeline.control.erasures import Erasure, Erasures
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.erase import erase_marked

log = logging.getLogger(__name__)


class Eraser:
    """Looks for wishes at each call."""

    def __init__(self, store: Store, erasures: Erasures) -> None:
        self._store, self._erasures = store, erasures

    def __call__(self) -> Sequence[Erasure]:
        """Erase what is wished for; return what was erased. What fails now is tried at the next call."""
        done: list[Erasure] = []
        try:
            for one in self._erasures.waiting():
                rows = erase_marked(self._store, one.column, one.value)
                self._erasures.finish(one, rows)
                log.info("Erased %d rows of the simulation %s.", rows, one.value)
                done.append(one)
        except FlightwatchError as error:
            log.warning("A simulation was not erased yet: %s", error)
        return done

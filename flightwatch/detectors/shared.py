"""What several detectors make of the same frames, made once a pass: grids of samples, expected temperatures."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd

from flightwatch.detectors.contract import Frames

Made = TypeVar("Made")
#: Dense columns that one grid keeps for the next detector, in bytes.
KEPT_BYTES = 256_000_000


class SharedFrames(dict[str, pd.DataFrame]):
    """Frames of one pass of all detectors, with what was made of them; nothing of it may be changed.

    Parameters
    ----------
    frames: tables and, where there are some, dense runs of steps.
    """

    def __init__(self, frames: Frames) -> None:
        super().__init__(frames)
        self.dense_runs = tuple(getattr(frames, "dense_runs", ()))
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what was made under this key, making it at the first call."""
        if key not in self._made:
            self._made[key] = make()
        return cast(Made, self._made[key])


def once(frames: Frames, key: Hashable, make: Callable[[], Made]) -> Made:
    """Return what `make` makes: shared between detectors where the frames are, else made now."""
    return frames.once(key, make) if isinstance(frames, SharedFrames) else make()


class KeptArrays:
    """Arrays asked for lately, up to so many bytes; they are read-only.

    Parameters
    ----------
    most_bytes: the array used longest ago is let go beyond that.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._arrays: dict[Hashable, np.ndarray | None] = {}

    def get(self, key: Hashable, make: Callable[[], np.ndarray | None]) -> np.ndarray | None:
        """Return the array of a key, made where it is not kept."""
        array = self._arrays.pop(key) if key in self._arrays else make()
        if array is not None:
            array.flags.writeable = False
        self._arrays[key] = array
        while len(self._arrays) > 1 and self._size() > self._most_bytes:
            del self._arrays[next(iter(self._arrays))]
        return array

    def _size(self) -> int:
        # One array may be kept under two keys.
        return sum({id(one): one.nbytes for one in self._arrays.values() if one is not None}.values())

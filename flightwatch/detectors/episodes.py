"""From alarms per block to episodes: when a rank's deviation began, was said, and was over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flightwatch.detectors.drift import Alarms, Deviations
from flightwatch.detectors.grouped import trailing_mean

WINDOW, ACCUMULATION, LEVEL, RECURRENCE = 1, 2, 4, 8
#: Blocks over which a deviation must be gone before an episode is over, and over which it is estimated.
CLEAR_BLOCKS = 8
RECURRENCE_CLEAR_BLOCKS = 40


@dataclass(frozen=True)
class Episode:
    """One rank's deviation in one channel.

    Attributes
    ----------
    rank: position in the run's arrays. begin, said, over: blocks of onset, of detection and of the end
    (None while it lasts). effect, score: at detection. path: bit set of the tests that spoke.
    """

    channel: str
    rank: int
    begin: int
    said: int
    over: int | None
    effect: float
    score: float
    path: int


def episodes_of(channel: str, dev: Deviations, found: Alarms) -> list[Episode]:
    """Return the episodes of one channel, ordered by detection."""
    result: list[Episode] = []
    for rank in np.nonzero(found.on_TR.any(axis=0))[0].tolist():
        result += _of_rank(channel, rank, dev, found)
    return sorted(result, key=lambda episode: (episode.said, episode.rank))


def _of_rank(channel: str, rank: int, dev: Deviations, found: Alarms) -> list[Episode]:
    on = np.nonzero(found.on_TR[:, rank])[0]
    own, level = dev.own_TR[:, rank], dev.level_TR[:, rank]
    recent = trailing_mean(own[:, None], CLEAR_BLOCKS)[:, 0]
    recent_level = trailing_mean(level[:, None], CLEAR_BLOCKS)[:, 0]
    result: list[Episode] = []
    position = 0
    while position < len(on):
        said = int(on[position])
        effect, score = float(found.effect_TR[said, rank]), float(found.score_TR[said, rank])
        path = int(found.path_TR[said, rank])
        patience = RECURRENCE_CLEAR_BLOCKS if path == RECURRENCE else CLEAR_BLOCKS
        mean = recent_level if path & LEVEL and not path & (WINDOW | ACCUMULATION) else recent
        over = None
        last_on = said
        for block in range(said + 1, len(own)):
            if found.on_TR[block, rank] and (path == RECURRENCE or mean[block] > 0.35 * effect):
                last_on = block
            gone = not np.isfinite(mean[block]) or mean[block] < 0.35 * effect
            if gone and block - last_on >= patience and np.isfinite(own[block]):
                over = block
                break
        begin = _onset(level if path == LEVEL else own, said, effect, path)
        result.append(Episode(channel, rank, begin, said, over, effect, score, path))
        if over is None:
            break
        position = int(np.searchsorted(on, over, side="right"))
    return result


def _onset(own: np.ndarray, said: int, effect: float, path: int) -> int:
    """Walk back from detection to the first block of the deviation."""
    block, missed = said, 0
    first = said
    patience = RECURRENCE_CLEAR_BLOCKS if path == RECURRENCE else 2
    while block > 0 and missed <= patience:
        if own[block] > 0.4 * effect:
            first, missed = block, 0
        else:
            missed += 1
        block -= 1
    return first

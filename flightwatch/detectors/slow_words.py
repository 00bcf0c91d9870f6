"""Words, times and evidence of the slow-node detector's statements."""

from __future__ import annotations

from typing import Any

import numpy as np

from flightwatch.core.vocabulary import FindingScope
from flightwatch.detectors.drift import BLOCK
from flightwatch.detectors.episodes import ACCUMULATION, LEVEL, RECURRENCE, WINDOW, Episode
from flightwatch.detectors.rank_matrix import RunSteps
from flightwatch.detectors.slow_channels import Channel

PATH_NAMES = {WINDOW: "window", ACCUMULATION: "accumulation", LEVEL: "level", RECURRENCE: "recurrence"}
#: How a person repeats the comparison.
PEER_QUERY = (
    "SELECT rank, quantile(0.5)({column}) FROM flightwatch.rank_steps WHERE job = '{job}' AND run = '{run}' "
    "AND step BETWEEN {first} AND {last} GROUP BY rank ORDER BY 2 DESC LIMIT 20"
)
CHANNEL_COLUMN = {"compute": "compute_us", "data": "data_us", "launch": "launch_gap_us", "transfer": "transfer_us"}


def evidence_of(run: RunSteps, channel: Channel, episode: Episode, positions: list[int]) -> dict[str, Any]:
    """Return what a person needs to check a statement: peers, window, values, z and a query."""
    last = measured_steps(episode)
    role = channel.role.of_rank_R
    peers = [int(i) for i in np.nonzero(role == role[episode.rank])[0] if i not in positions]
    wait = run.channel("wait_us")
    column = CHANNEL_COLUMN[channel.name]
    steps = run.steps_S[last]
    seen: dict[str, Any] = {
        "channel": channel.name,
        "test": [name for bit, name in PATH_NAMES.items() if episode.path & bit],
        "effect": round(episode.effect, 4),
        "z": round(episode.score, 2),
        "peers": len(peers),
        "peer_ranks": [int(run.layout.ranks_R[i]) for i in peers[:8]],
        "ranks": [int(run.layout.ranks_R[i]) for i in positions[:64]],
        "window_steps": [int(steps[0]), int(steps[-1])],
        f"own_{column}": _rounded(np.nanmedian(channel.raw_SR[last][:, positions])),
        f"peers_{column}": _rounded(np.nanmedian(channel.raw_SR[last][:, peers])) if peers else None,
        "roles_known": run.layout.known,
    }
    if wait is not None and peers:
        seen["own_wait_us"] = _rounded(np.nanmedian(wait[last][:, positions]))
        seen["peers_wait_us"] = _rounded(np.nanmedian(wait[last][:, peers]))
    # Text for a person to paste; it passes the guard like any other query.
    seen["sql"] = PEER_QUERY.format(
        column=column, job=_quoted(run.job), run=_quoted(run.run), first=int(steps[0]), last=int(steps[-1])
    )
    return seen


def target_names(run: RunSteps, scope: FindingScope, positions: list[int]) -> tuple[str, ...]:
    """Return how sentences and the column `targets` name ranks, nodes or racks."""
    layout = run.layout
    if scope == FindingScope.RACK:
        return tuple(sorted({str(layout.domain["rack"][i]) for i in positions}))
    if scope == FindingScope.NODE:
        return tuple(sorted({str(layout.node_R[i]) for i in positions}))
    names = []
    for i in positions:
        node, device = layout.node_R[i], int(layout.device_R[i])
        place = "" if node is None else f" ({node}" + (f" device {device})" if device >= 0 else ")")
        names.append(f"rank {int(layout.ranks_R[i])}{place}")
    return tuple(names)


def end_of_block(run: RunSteps, block: int) -> int | None:
    """Return when a block was over, milliseconds since the epoch; None when times are unknown."""
    at = run.end_ms_S[min((block + 1) * BLOCK, len(run.end_ms_S)) - 1]
    return int(at) if np.isfinite(at) else None


def later_end(a: int | None, b: int | None) -> int | None:
    """Return the later of two ends; None, still lasting, is the latest."""
    return None if a is None or b is None else max(a, b)


def known_mean(values: np.ndarray) -> float:
    """Return the mean of what is known, 0 when nothing is."""
    return float(np.nanmean(values)) if values.size and np.isfinite(values).any() else 0.0


def _rounded(value: Any) -> float | None:
    return round(float(value), 1) if np.isfinite(value) else None


def _quoted(text: str | None) -> str:
    return (text or "").replace("\\", "\\\\").replace("'", "\\'")


def measured_steps(episode: Episode) -> slice:
    """Steps on which an episode is measured: from its onset (at most eight blocks back) to its detection."""
    first = max(0, episode.said - 7)
    if episode.path != RECURRENCE:
        first = min(max(first, episode.begin), episode.said)
    return slice(first * BLOCK, (episode.said + 1) * BLOCK)

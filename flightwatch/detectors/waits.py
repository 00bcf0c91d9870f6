"""Waiting and transfer of collectives whose members are on several nodes.

An agent splits a rank's communication only for groups that are whole on its node; elsewhere both columns are NULL.
Here all ranks of the run are side by side: ends of a barrier-like collective coincide, so in each step and group the
shortest time along an axis is the transfer, and wait = communication - transfer. No clock is compared.

It works on sums over a step: with several stragglers in one step the transfer is overestimated, as the agent's own
split is. The pipeline axis has no transfer here: its times hold the bubble, which is waiting. Without roles, or
without communication by axis, nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from flightwatch.detectors.grouped import FloatArray
    from flightwatch.detectors.rank_matrix import RunSteps

#: Axes whose collectives end on all members at once.
AXES = ("tp", "cp", "dp", "ep")
SPLIT = ("wait_us", "transfer_us")


def filled(run: RunSteps, name: str, stored: Callable[[str], FloatArray | None]) -> FloatArray | None:
    """Return `wait_us` or `transfer_us` [S, R] with its unknown cells filled: from the other one, else from the ranks.

    Parameters
    ----------
    stored: returns a column as it is stored, None when it is not.
    """
    known = stored(name)
    if known is not None and not np.isnan(known).any():
        return known
    comm = run.channel("comm_us")
    if comm is None:
        return known
    other = stored(SPLIT[1 - SPLIT.index(name)])
    if other is not None:
        known = _over(known, np.maximum(comm - other, 0))
    # Cells of rows that were lost stay unknown and ask for nothing.
    if known is None or bool((np.isnan(known) & ~np.isnan(comm)).any()):
        shortest = _shortest(run)
        if shortest is not None:
            transfer = np.minimum(shortest, comm)
            known = _over(known, transfer if name == "transfer_us" else comm - transfer)
    return None if known is None or np.isnan(known).all() else known


def _over(known: FloatArray | None, guess: FloatArray) -> FloatArray:
    """Return what is known, and the guess where nothing is."""
    result: FloatArray = (guess if known is None else np.where(np.isnan(known), guess, known)).astype(np.float32)
    return result


def _shortest(run: RunSteps) -> FloatArray | None:
    """Return the sum over axes of the shortest time of each rank's group, NaN where no axis is known."""
    if not run.layout.known:
        return None
    total: FloatArray | None = None
    for column in run.columns("comm_by_axis_us"):
        axis, values = column.split(".", 1)[1], run.channel(column)
        if axis not in AXES or values is None:
            continue
        groups = run.layout.communication_groups(axis)
        shortest = groups.to_ranks(groups.quantiles(values, 0.0))
        # A rank that does not report this step has no split, whatever its peers report.
        part = np.where(np.isnan(values), np.nan, shortest)
        total = part if total is None else np.where(np.isnan(total), part, total + np.nan_to_num(part))
    return total

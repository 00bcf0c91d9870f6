"""Counters that stand at the ceiling of their width: saturated, not quiet.

A counter of 32 bits, or one that its firmware caps, stops at its largest value. What it did not grow since then says
nothing: the event it counts may go on. A ceiling is told by the value itself where it is too particular to be met by
chance (2^16 - 1 and wider, 10^5 - 1 and wider); an 8-bit counter at 255 says nothing alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.grouped import FloatArray
from flightwatch.detectors.series import Grid, Spell, cells, spells
from flightwatch.detectors.statement import About, place, state_findings

#: Largest values of counters, and what they are the largest of. Beyond 2^53 floats are compared as they are stored.
CEILINGS: dict[float, str] = {
    float(2**16 - 1): "16 bits", float(2**24 - 1): "24 bits", float(2**31 - 1): "31 bits", float(2**32 - 1): "32 bits",
    float(2**48 - 1): "48 bits", float(2**63): "63 bits", float(2**64): "64 bits", 99_999.0: "five digits",
    999_999.0: "six digits", 9_999_999.0: "seven digits",
}  # fmt: skip
#: From so many targets on, and this share of all, a saturated counter is told once.
MANY, MANY_SHARE = 16, 0.25


def saturated_counters(
    grid: Grid, names: tuple[str, ...], detector: str, version: str, hold_s: float, clear_s: float
) -> Iterator[Finding]:
    """Yield findings about counters of one table that stand at a ceiling; blames nobody.

    Parameters
    ----------
    hold_s, clear_s: for how long a counter stands there, and how long it must have left before that is over.
    """
    on, off = cells(hold_s, grid.interval_s, 3), cells(clear_s, grid.interval_s, 2)
    for name in names:
        values = grid.column(name)
        if values is None or not (values >= min(CEILINGS)).any():
            continue
        found = list(spells(_stands(values), on, off))
        many = len({spell.target for spell in found})
        if many >= MANY and many > MANY_SHARE * grid.shape[1]:
            first = min(found, key=lambda spell: spell.said)
            yield from state_findings(detector, version, grid, first, _of_many(name, many, grid.shape[1]))
            continue
        for spell in found:
            value = float(
                values[: spell.said + 1, spell.target][np.isfinite(values[: spell.said + 1, spell.target])][-1]
            )
            yield from state_findings(detector, version, grid, spell, _of_one(grid, spell, name, value))


def _stands(values_TD: FloatArray) -> np.ndarray:
    """Say where a counter is at a ceiling; a cell without a sample goes on as the one before."""
    at = np.isin(values_TD, list(CEILINGS))
    for t in range(1, len(at)):
        at[t] = np.where(np.isnan(values_TD[t]), at[t - 1], at[t])
    return at


def _of_one(grid: Grid, spell: Spell, name: str, value: float) -> About:
    key = grid.keys_D[spell.target]
    is_port = len(key) == 3
    where = f"{key[0]} {key[1] or 'port'}/{key[2]}" if is_port else place(key[0], key[1])
    return About(
        kind=FindingKind.SENSOR, class_="stuck", scope=FindingScope.PORT if is_port else FindingScope.DEVICE,
        node=str(key[0]), device=None if is_port else key[1], hca=key[1] if is_port else None,
        port=key[2] if is_port else None, targets=(where,), score=1.0, severity=Severity.P4, blames_hardware=False,
        summary=f"{where}: {name} is saturated, not quiet; it stands at {value:.0f}, the most that {CEILINGS[value]} "
        "hold: what it counts may go on, its growth is unknown until it is reset.",
        evidence={"column": name, "saturated_at": value, "width": CEILINGS[value]}, aspect=f"saturated:{name}",
    )  # fmt: skip


def _of_many(name: str, many: int, targets: int) -> About:
    return About(
        kind=FindingKind.SENSOR, class_="stuck", scope=FindingScope.FACILITY, targets=(name,), score=float(many),
        severity=Severity.P4, blames_hardware=False, aspect=f"saturated:{name}",
        summary=f"{name} is saturated, not quiet, on {many} of {targets} targets; what it counts may go on, its growth "
        "there is unknown until it is reset.",
        evidence={"column": name, "saturated": many, "targets": targets},
    )  # fmt: skip

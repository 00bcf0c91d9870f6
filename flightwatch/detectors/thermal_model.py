"""What each device's temperature should be, learned as it goes: own level, own kelvin per watt, one shared hall.

`T = slope x P_ema + level of the device + (own - usual slope) x (P_ema - P_first) + hall of the model + noise`. Level
and own slope of every device are followed by a Kalman filter with constant states, the hall at each moment is the
median of what devices that are known well by then do not explain. What a device was never seen at (idle so far, now at
full power) has a large predicted variance, and so has the time in which heat follows power: nobody is called hot there,
and a reading far outside what is predicted is not learned from. Two-way robust regression; the filter is the
textbook's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flightwatch.detectors.grouped import BoolArray, FloatArray, sorted_median

#: Readings of one device are independent about every so many seconds.
INDEPENDENT_S = 60.0
#: Heat follows power as an average over this many seconds; the slower one says how much of it is still under way.
FAST_S, SLOW_S = 60.0, 180.0
#: Share of the heat under way that may be told wrongly; share of all heat in the first moments of the recording.
UNDER_WAY, AT_FIRST, FIRST_S = 0.5, 0.3, 90.0
#: Devices predicted to better than this tell what the hall does, when they are this share of their model.
KNOWN_K, KNOWN_SHARE = 1.5, 0.3
#: Readings further out than so many deviations are not learned from.
GATE = 3.0


@dataclass(frozen=True)
class Explained:
    """What was left over.

    Attributes
    ----------
    residual_TD: kelvin above expectation. doubt_TD: standard deviation of the expectation itself. hall_TD: what all
    devices of the model share.
    """

    residual_TD: FloatArray
    doubt_TD: FloatArray
    hall_TD: FloatArray


@dataclass
class _Belief:
    """Level and slope of every device with their covariance; NaN levels are not known yet."""

    level_D: FloatArray
    slope_D: FloatArray
    level_var_D: FloatArray
    both_var_D: FloatArray
    slope_var_D: FloatArray

    @staticmethod
    def of(slope_var_D: FloatArray) -> _Belief:
        zero = np.zeros(len(slope_var_D))
        return _Belief(np.full(len(zero), np.nan), zero.copy(), zero.copy(), zero.copy(), slope_var_D.copy())

    def variance(self, watts_D: FloatArray) -> FloatArray:
        return np.asarray(self.level_var_D + 2 * watts_D * self.both_var_D + watts_D**2 * self.slope_var_D)

    def learn(self, at_D: BoolArray, watts_D: FloatArray, error_D: FloatArray, noise_var_D: FloatArray) -> None:
        """Move towards what was read (one Kalman update per device)."""
        watts = watts_D[at_D]
        level = self.level_var_D[at_D] + watts * self.both_var_D[at_D]
        slope = self.both_var_D[at_D] + watts * self.slope_var_D[at_D]
        total = level + watts * slope + noise_var_D[at_D]
        self.level_D[at_D] += level / total * error_D[at_D]
        self.slope_D[at_D] += slope / total * error_D[at_D]
        self.level_var_D[at_D] -= level * level / total
        self.both_var_D[at_D] -= level * slope / total
        self.slope_var_D[at_D] -= slope * slope / total


def explain_heat(
    temp_TD: FloatArray, power_TD: FloatArray, labels_D: Sequence[object], slope_D: FloatArray,
    slope_share_D: FloatArray, interval_s: float, noise_k: float,
) -> Explained:  # fmt: skip
    """Return what the temperatures leave unexplained.

    Parameters
    ----------
    temp_TD, power_TD: NaN where unknown; where power is unknown throughout, it explains nothing.
    slope_D: usual kelvin per watt of the device's model. slope_share_D: how far devices differ from it, as a ratio.
    noise_k: scatter of readings.
    """
    times, devices = temp_TD.shape
    fast, slow = ema(power_TD, FAST_S / interval_s), ema(power_TD, SLOW_S / interval_s)
    under_way = UNDER_WAY * slope_D * np.nan_to_num(np.abs(fast - slow))
    first = AT_FIRST * slope_D * np.nan_to_num(fast) * np.exp(-np.arange(times) * interval_s / FIRST_S)[:, None]
    moving_var = under_way**2 + first**2
    known = np.isfinite(fast)
    reference = np.where(known.any(axis=0), fast[known.argmax(axis=0), np.arange(devices)], 0.0)
    watts_TD = np.where(known, fast - reference, 0.0)
    own = temp_TD - slope_D * np.where(known, fast, 0.0)
    independent = max(1.0, INDEPENDENT_S / interval_s)
    groups = [np.flatnonzero([other == label for other in labels_D]) for label in dict.fromkeys(labels_D)]
    hall_D = np.zeros(devices)
    belief = _Belief.of((slope_share_D * slope_D) ** 2)
    residual, doubt, hall = (np.full(temp_TD.shape, np.nan) for _ in range(3))
    for t in range(times):
        watts, moving = watts_TD[t], moving_var[t]
        error = own[t] - belief.level_D - belief.slope_D * watts
        variance = belief.variance(watts) + moving
        _follow_hall(hall_D, error, variance, groups)
        left = error - hall_D
        residual[t], doubt[t], hall[t] = left, np.sqrt(variance), hall_D
        with np.errstate(invalid="ignore"):
            believed = np.abs(left) <= GATE * np.sqrt(variance + noise_k**2)
        noise_var = independent * (noise_k**2 + moving)
        new = np.isnan(belief.level_D) & np.isfinite(own[t])
        belief.learn(believed, watts, left, noise_var)
        belief.level_D[new] = (own[t] - hall_D - belief.slope_D * watts)[new]
        belief.level_var_D[new] = noise_var[new]
    return Explained(residual, doubt, hall)


def _follow_hall(hall_D: FloatArray, error_D: FloatArray, variance_D: FloatArray, groups: Sequence[np.ndarray]) -> None:
    """Set what devices of one model share now; kept where too few of them are known well."""
    told = np.isfinite(error_D)
    known = told & (variance_D <= KNOWN_K**2)
    for members in groups:
        inside = members[known[members]]
        if len(inside) >= max(1.0, KNOWN_SHARE * np.count_nonzero(told[members])):
            hall_D[members] = sorted_median(error_D[inside])


def ema(values_TD: FloatArray, width: float) -> FloatArray:
    """Return the exponential average over `width` cells; unknown cells keep the last value."""
    share = 1 - np.exp(-1 / max(width, 1e-6))
    result = values_TD.copy()
    for t in range(1, len(result)):
        before = np.where(np.isfinite(result[t - 1]), result[t - 1], values_TD[t])
        result[t] = np.where(np.isfinite(values_TD[t]), before + share * (values_TD[t] - before), before)
    return result

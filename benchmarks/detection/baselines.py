"""Plain detectors to compare with: each names suspicious ranks in one window of compute times.

All read the same window (steps x ranks, microseconds) and know nothing of roles, as such tools do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import NearestNeighbors

Window = np.ndarray


def static_threshold(times_SR: Window) -> np.ndarray:
    """A rank whose mean is 10 % above the job's."""
    mean = np.nanmean(times_SR, axis=0)
    return np.asarray(mean > 1.10 * np.nanmean(mean))


def three_sigma(times_SR: Window) -> np.ndarray:
    """A rank more than three standard deviations above the mean of ranks."""
    mean = np.nanmean(times_SR, axis=0)
    return np.asarray(mean > np.nanmean(mean) + 3 * np.nanstd(mean))


def median_mad(times_SR: Window) -> np.ndarray:
    """A rank with a robust z above 3.5 over all ranks."""
    level = np.nanmedian(times_SR, axis=0)
    spread = 1.4826 * np.nanmedian(np.abs(level - np.nanmedian(level)))
    return np.asarray(level > np.nanmedian(level) + 3.5 * max(float(spread), 1e-9))


def nearest_neighbours(times_SR: Window) -> np.ndarray:
    """The mean distance to five neighbours is an outlier (PyOD's k-NN, mean) and the rank is the slower side."""
    points = np.nan_to_num(times_SR.T / np.nanmedian(times_SR))
    count = min(6, len(points))
    distance = NearestNeighbors(n_neighbors=count).fit(points).kneighbors(points)[0][:, 1:].mean(axis=1)
    spread = 1.4826 * np.median(np.abs(distance - np.median(distance)))
    far = distance > np.median(distance) + 6 * max(float(spread), 1e-9)
    return np.asarray(far & (points.mean(axis=1) > np.median(points)))


def isolation_forest(times_SR: Window) -> np.ndarray:
    """An isolation forest over mean, median, spread and tail of each rank."""
    parts = [np.nanmean(times_SR, axis=0), np.nanmedian(times_SR, axis=0), np.nanstd(times_SR, axis=0),
             np.nanquantile(times_SR, 0.9, axis=0)]  # fmt: skip
    points = np.stack(parts, axis=1)
    score = IsolationForest(n_estimators=50, random_state=0).fit(points).score_samples(points)
    return np.asarray((score < -0.7) & (points[:, 0] > np.median(points[:, 0])))


def relative_score(times_SR: Window) -> np.ndarray:
    """The fastest rank's median over this rank's is below 0.75 (how NVRx scores relative performance)."""
    level = np.nanmedian(times_SR, axis=0)
    return np.asarray(np.nanmin(level) / level < 0.75)


BASELINES: dict[str, Callable[[Window], np.ndarray]] = {
    "static +10 %": static_threshold,
    "3 sigma": three_sigma,
    "median/MAD": median_mad,
    "k-NN": nearest_neighbours,
    "IsolationForest": isolation_forest,
    "NVRx-style": relative_score,
}

"""Plain detectors to compare with: each names suspicious ranks at the end of a window of compute times.

All read the same times (steps x ranks, microseconds) and know nothing of roles, as such tools do. k-NN and the
isolation forest are PyOD's (BSD-2), by scikit-learn: PyOD's `KNN(method="mean")` is the mean distance to the nearest
neighbours, its `IForest` wraps scikit-learn's. PyOD itself needs numba and matplotlib, which a benchmark does not
justify. All but netdata's read the last window only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import NearestNeighbors

Times = np.ndarray


def static_threshold(past_SR: Times, window: int) -> np.ndarray:
    """A rank whose mean is 10 % above the job's."""
    mean = np.nanmean(past_SR[-window:], axis=0)
    return np.asarray(mean > 1.10 * np.nanmean(mean))


def three_sigma(past_SR: Times, window: int) -> np.ndarray:
    """A rank more than three standard deviations above the mean of ranks."""
    mean = np.nanmean(past_SR[-window:], axis=0)
    return np.asarray(mean > np.nanmean(mean) + 3 * np.nanstd(mean))


def median_mad(past_SR: Times, window: int) -> np.ndarray:
    """A rank with a robust z above 3.5 over all ranks."""
    level = np.nanmedian(past_SR[-window:], axis=0)
    spread = 1.4826 * np.nanmedian(np.abs(level - np.nanmedian(level)))
    return np.asarray(level > np.nanmedian(level) + 3.5 * max(float(spread), 1e-9))


def nearest_neighbours(past_SR: Times, window: int) -> np.ndarray:
    """The mean distance to five neighbours is an outlier and the rank is on the slower side."""
    times = past_SR[-window:]
    points = np.nan_to_num(times.T / np.nanmedian(times))
    count = min(6, len(points))
    distance = NearestNeighbors(n_neighbors=count).fit(points).kneighbors(points)[0][:, 1:].mean(axis=1)
    spread = 1.4826 * np.median(np.abs(distance - np.median(distance)))
    far = distance > np.median(distance) + 6 * max(float(spread), 1e-9)
    return np.asarray(far & (points.mean(axis=1) > np.median(points)))


def isolation_forest(past_SR: Times, window: int) -> np.ndarray:
    """An isolation forest over mean, median, spread and tail of each rank."""
    times = past_SR[-window:]
    parts = [np.nanmean(times, axis=0), np.nanmedian(times, axis=0), np.nanstd(times, axis=0),
             np.nanquantile(times, 0.9, axis=0)]  # fmt: skip
    points = np.stack(parts, axis=1)
    score = IsolationForest(n_estimators=50, random_state=0).fit(points).score_samples(points)
    return np.asarray((score < -0.7) & (points[:, 0] > np.median(points[:, 0])))


def relative_score(past_SR: Times, window: int) -> np.ndarray:
    """The fastest rank's median over this rank's is below 0.75 (how NVRx scores relative performance)."""
    level = np.nanmedian(past_SR[-window:], axis=0)
    return np.asarray(np.nanmin(level) / level < 0.75)


def own_clusters(past_SR: Times, window: int, lag: int = 6) -> np.ndarray:
    """Two clusters of each rank's own past (netdata's way): smoothed differences, six lags, k-means with k = 2.

    A step is anomalous when it is farther from both centres than the 99th percentile of the training steps; the rank
    when a tenth of the window's steps is, and it became slower.
    """
    if len(past_SR) < 2 * window:
        return np.zeros(past_SR.shape[1], dtype=bool)
    filled = np.where(np.isnan(past_SR), np.nanmedian(past_SR, axis=0), past_SR) / np.nanmedian(past_SR)
    smooth = np.stack([filled[i : len(filled) - 2 + i] for i in range(3)]).mean(axis=0)
    grown = np.diff(smooth, axis=0)
    lags = np.stack([grown[i : len(grown) - lag + 1 + i] for i in range(lag)], axis=-1)
    trained, judged = lags[:-window], lags[-window:]
    least, most = trained.min(axis=0), trained.max(axis=0)
    scale = np.maximum(most - least, 1e-12)
    trained, judged = (trained - least) / scale, (judged - least) / scale
    order = trained.sum(axis=-1).argsort(axis=0)
    ranks = np.arange(trained.shape[1])
    centres = np.stack([trained[order[0], ranks], trained[order[-1], ranks]])
    for _ in range(8):
        near = ((trained[None] - centres[:, None]) ** 2).sum(axis=-1).argmin(axis=0)
        for k in range(2):
            mine = (near == k)[..., None]
            centres[k] = np.where(mine.any(axis=0), (trained * mine).sum(axis=0) / np.maximum(mine.sum(axis=0), 1),
                                  centres[k])  # fmt: skip
    limit = np.quantile(_distance(trained, centres), 0.99, axis=0)
    anomalous = (_distance(judged, centres) > limit).mean(axis=0) > 0.1
    slower = np.nanmedian(past_SR[-window:], axis=0) > 1.02 * np.nanmedian(past_SR[:-window], axis=0)
    return np.asarray(anomalous & slower)


def _distance(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(((points[None] - centres[:, None]) ** 2).sum(axis=-1)).min(axis=0))


BASELINES: dict[str, Callable[[Times, int], np.ndarray]] = {
    "static +10 %": static_threshold,
    "3 sigma": three_sigma,
    "median/MAD": median_mad,
    "k-NN (PyOD's)": nearest_neighbours,
    "IsolationForest (PyOD's)": isolation_forest,
    "k-means (netdata's)": own_clusters,
    "relative score (NVRx's)": relative_score,
}

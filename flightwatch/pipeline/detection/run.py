"""Runs detectors over frames; one that fails does not take the others along."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from flightwatch.detectors.contract import Detector, Finding, Frames
from flightwatch.detectors.dense_steps import DenseFrames
from flightwatch.detectors.derive_steps import steps_from_ops
from flightwatch.detectors.shared import SharedFrames

log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """What one pass over frames gave.

    Attributes
    ----------
    findings: in order of detection. failures: detector name to what went wrong.
    """

    findings: list[Finding] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def with_steps(frames: Frames) -> Frames:
    """Return frames in which `rank_steps` is derived from `op_timings` when it is absent."""
    steps = frames.get("rank_steps")
    ops = frames.get("op_timings")
    if (steps is not None and not steps.empty) or ops is None or ops.empty:
        return frames
    joined: dict[str, pd.DataFrame] = dict(frames)
    derived = steps_from_ops(ops)
    if not derived.empty:
        joined["rank_steps"] = derived
    return joined


def by_cluster(frames: Frames) -> list[Frames]:
    """Return the frames of each cluster apart: nodes of two clusters are no peers, jobs may have one name.

    Rows without a cluster, and tables without that column, belong to all of them.
    """
    names: set[str] = set()
    for frame in frames.values():
        if "cluster" in frame:
            names.update(str(one) for one in pd.unique(frame["cluster"]) if one is not None and one == one)
    if len(names) < 2:
        return [frames]
    return [_frames_of(frames, name) for name in sorted(names)]


def _only_cluster(frames: Frames) -> str | None:
    names = {str(one) for frame in frames.values() if "cluster" in frame and len(frame)
             for one in pd.unique(frame["cluster"]) if one is not None and one == one}  # fmt: skip
    return names.pop() if len(names) == 1 else None


def _placed(finding: Finding, cluster: str | None) -> Finding:
    """Return the finding with the cluster of its rows where the detector did not say it."""
    return finding if finding.cluster is not None or cluster is None else replace(finding, cluster=cluster)


def _frames_of(frames: Frames, name: str) -> Frames:
    tables = {table: _of_cluster(frame, name) for table, frame in frames.items()}
    dense = getattr(frames, "dense_runs", None)
    return tables if dense is None else DenseFrames(tables, [one for one in dense if one.cluster in (name, None)])


def _of_cluster(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    if "cluster" not in frame:
        return frame
    return frame[(frame["cluster"] == name) | frame["cluster"].isna()]


def run_detectors(detectors: Iterable[Detector], frames: Mapping[str, pd.DataFrame]) -> Outcome:
    """Run every detector once over the frames of every cluster."""
    outcome = Outcome()
    chosen = list(detectors)
    for part in by_cluster(with_steps(frames)):
        name = _only_cluster(part)
        ready = SharedFrames(part)
        for detector in chosen:
            try:
                outcome.findings += [_placed(one, name) for one in detector.score(ready)]
            except Exception as error:
                log.exception("The detector %s failed; the others go on.", detector.name)
                outcome.failures[detector.name] = f"{type(error).__name__}: {error}"
    outcome.findings.sort(key=lambda one: (one.detected_at if one.detected_at is not None else -1, one.detector))
    return outcome

"""Step times of a synchronous TP x CP x PP x DP job, coupled as collectives couple them.

Each rank computes for its own time; tensor and context groups wait for their slowest member, the
pipeline for its slowest stage plus the bubble, data-parallel replicas for the slowest replica. Every
rank's step takes equally long; the slow rank computes long and waits short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault, FloatArray, compute_ranks, level, link_factor_nodes
from flightwatch.simulator.words import coded, constant

CHANNELS = (
    "step_us", "compute_us", "forward_us", "backward_us", "optimizer_us", "data_us", "checkpoint_us",
    "launch_gap_us", "comm_us", "wait_us", "transfer_us", "unattributed_us",
)  # fmt: skip


class TimingModel:
    """Draws the steps of one job; memory grows with one chunk of steps, not with the run.

    Parameters
    ----------
    seed: same seed, same steps, whatever the chunk size in `chunks` (drawn per 50 steps).
    """

    def __init__(self, cluster: Cluster, job: Job, faults: Sequence[Fault], seed: int, start_ms: int) -> None:
        self.cluster, self.job, self.faults = cluster, job, tuple(faults)
        self._seed = seed
        self._now_ms = float(start_ms)
        rng = np.random.default_rng([seed, 1])
        ranks = job.ranks
        self.node_R, self.device_R = job.place(cluster)
        self.chip_R = np.exp(np.clip(rng.normal(0, job.chip_spread, ranks), -3 * job.chip_spread, 3 * job.chip_spread))
        stage = job.axis("pp")
        self.stage_R = 1.0 + job.stage_imbalance * (stage == job.pp - 1) * (job.pp > 1)
        if job.cp > 1:
            self.stage_R = self.stage_R * (1 + 0.1 * job.axis("cp") / job.cp)
        hot = job.hot_expert * (job.axis("ep") == 0) if job.ep > 1 else np.zeros(ranks)
        self.expert_R = 1.0 + hot
        self.shape = (job.pp, job.dp, job.cp, job.tp)
        self._split = np.random.default_rng([seed, 4])
        self._noise_scale_R = np.exp(rng.normal(0, 0.1, ranks))

    def chunks(
        self, steps: int, first_step: int = 0, size: int = 50
    ) -> Iterator[tuple[np.ndarray, dict[str, FloatArray]]]:
        """Yield (step numbers [S], channel to [S, R] in microseconds) for `steps` steps."""
        for start in range(first_step, first_step + steps, size):
            stop = min(start + size, first_step + steps)
            yield np.arange(start, stop), self._draw(np.arange(start, stop), start)

    def _draw(self, steps_S: np.ndarray, key: int) -> dict[str, FloatArray]:
        job, rng = self.job, np.random.default_rng([self._seed, 2, key])
        shape = (len(steps_S), job.ranks)
        base = job.step_ms * 1000 * np.exp(rng.normal(0, 0.005, (len(steps_S), 1)))
        if job.load_change is not None:
            base = base * np.where(steps_S >= job.load_change[0], job.load_change[1], 1.0)[:, None]
        work = self._work(rng, shape)
        compute = base * self.chip_R * self.stage_R * self.expert_R * work
        compute = compute * np.exp(rng.normal(0, 1, shape) * job.noise * self._noise_scale_R)
        compute = compute + base * 0.5 * (rng.random(shape) < job.gc_rate)
        gap = base * 0.02 * np.exp(rng.normal(0, 0.2, shape))
        loads = job.axis("pp") == 0
        data = base * 0.01 * np.exp(rng.normal(0, 0.4, shape)) * np.where(loads, 1.0, 0.02)
        optimizer = base * 0.03 * self.chip_R * np.exp(rng.normal(0, 0.01, shape))
        self._apply(steps_S, base, compute, gap, data, optimizer)
        if job.log_every:
            at = steps_S % job.log_every == 0
            compute[at, 0] += base[at, 0] * job.log_share
        checkpoint = np.zeros(shape)
        if job.checkpoint_every:
            at = (steps_S % job.checkpoint_every == 0) & (steps_S > 0)
            owners = job.axis("dp") == 0
            checkpoint[at] = np.where(owners, base[at] * 2.0, 0.0)
        transfers = self._transfers(steps_S, base, rng)
        return self._couple(compute, gap, data, optimizer, checkpoint, transfers, work)

    def _work(self, rng: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Relative work per rank-step; equal over tp and cp (they share the batch) and over pp."""
        job = self.job
        if not job.sequence_imbalance:
            return np.ones(shape)
        per_replica = np.exp(rng.normal(0, job.sequence_imbalance, (shape[0], job.dp)))
        return np.asarray(per_replica[:, job.axis("dp")])

    def _apply(
        self,
        steps_S: np.ndarray,
        base: FloatArray,
        compute: FloatArray,
        gap: FloatArray,
        data: FloatArray,
        optimizer: FloatArray,
    ) -> None:
        for fault in self.faults:
            ranks = compute_ranks(fault, self.cluster, self.job)
            on = level(fault, steps_S)[:, None] * fault.severity
            if fault.kind == "cpu_bound_host":
                gap[:, ranks] += base * on
            elif fault.kind == "slow_storage":
                data[:, ranks] += base * on
            elif fault.kind in ("slow_gpu", "slow_host", "thermal_gpu", "thermal_rack", "power_cap", "intermittent",
                                "gradual", "memory_bandwidth", "fan_failure_throttle"):  # fmt: skip
                compute[:, ranks] *= 1 + on
                optimizer[:, ranks] *= 1 + on * (2.0 if fault.kind == "memory_bandwidth" else 1.0)

    def _transfers(self, steps_S: np.ndarray, base: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Transfer time per axis, [S, R]: a collective runs at the pace of its slowest adapter or link."""
        job, nodes = self.job, self.cluster.nodes
        slow = np.ones((len(steps_S), nodes))
        pairs: list[tuple[int, int, FloatArray]] = []
        for fault in self.faults:
            factor = 1 + 10 * fault.severity * level(fault, steps_S)
            if fault.kind in ("slow_nic", "congested_switch", "packet_loss_slow"):
                slow[:, link_factor_nodes(fault, self.cluster)] *= factor[:, None]
            elif fault.kind == "slow_link" and fault.other_node is not None:
                pairs.append((fault.node, fault.other_node, factor))
        shape = (len(steps_S), *self.shape)
        nic = slow[:, self.node_R].reshape(shape)
        where = self.node_R.reshape(self.shape)
        share = base * job.transfer_share

        def jitter() -> FloatArray:
            return np.asarray(np.exp(rng.normal(0, 0.05, (len(steps_S), job.ranks))))

        result: dict[str, FloatArray] = {}
        if job.tp > 1:
            result["tp"] = share * 0.4 * jitter()
        if job.dp > 1:
            group = nic.max(axis=2, keepdims=True)
            group = np.broadcast_to(group, shape).copy()
            for a, b, factor in pairs:
                self._slow_ring(group, where, a, b, factor)
            result["dp"] = share * 0.4 * group.reshape(len(steps_S), job.ranks) * jitter()
        if job.pp > 1:
            hop = np.maximum(nic[:, 1:], nic[:, :-1])
            for a, b, factor in pairs:
                ends = ((where[1:] == a) & (where[:-1] == b)) | ((where[1:] == b) & (where[:-1] == a))
                hop = np.where(ends[None], np.maximum(hop, factor[:, None, None, None, None]), hop)
            own = np.ones(shape)
            own[:, 1:] = np.maximum(own[:, 1:], hop)
            own[:, :-1] = np.maximum(own[:, :-1], hop)
            result["pp"] = share * 0.2 * own.reshape(len(steps_S), job.ranks) * jitter()
        return result

    def _slow_ring(self, group: FloatArray, where: np.ndarray, a: int, b: int, factor: FloatArray) -> None:
        """Slow the data-parallel rings in which nodes a and b are neighbours."""
        following = np.roll(where, -1, axis=1)
        edge = ((where == a) & (following == b)) | ((where == b) & (following == a))
        touched = np.broadcast_to(edge.any(axis=1, keepdims=True), where.shape)
        grown = np.maximum(group, factor[:, None, None, None, None])
        group[:] = np.where(touched[None], grown, group)

    def _couple(
        self,
        compute: FloatArray,
        gap: FloatArray,
        data: FloatArray,
        optimizer: FloatArray,
        checkpoint: FloatArray,
        transfers: dict[str, FloatArray],
        work: FloatArray,
    ) -> dict[str, FloatArray]:
        job, steps = self.job, len(compute)
        transfer = np.sum([np.zeros_like(compute), *transfers.values()], axis=0)
        busy = compute + gap
        cube = busy.reshape(steps, *self.shape)
        stage = cube.max(axis=(3, 4))
        slowest = stage.max(axis=1)
        pipeline = slowest + (stage.sum(axis=1) - slowest) / job.microbatches
        own = np.asarray(transfer + data + optimizer + checkpoint)
        if job.asynchronous:
            step = np.repeat(pipeline, job.tp * job.cp, axis=1) if job.pp == 1 else busy
            step = step + own
        else:
            tail = own.max(axis=1, keepdims=True)
            step = np.broadcast_to(pipeline.max(axis=1, keepdims=True) + tail, busy.shape)
        wait = step - busy - own
        # Noise strikes forward and backward apart, work strikes both.
        forward = compute / 3 * np.exp(self._split.normal(0, job.noise, compute.shape))
        result: dict[str, FloatArray] = dict(
            zip(
                CHANNELS,
                (step, compute, forward, compute - forward, optimizer, data, checkpoint, gap, wait + transfer, wait,
                 transfer, np.zeros_like(compute)),
                strict=True,
            )
        )  # fmt: skip
        # Waiting is spent in the collective that closes the gap: tensor group first, the rest in the pipeline
        # (or in the gradient reduction when there is none).
        tensor_wait = (cube.max(axis=4, keepdims=True) - cube).reshape(busy.shape)
        last = "pp" if "pp" in transfers else "dp"
        for axis, value in transfers.items():
            waited = tensor_wait if axis == "tp" else wait - tensor_wait if axis == last else 0.0
            result[f"comm_by_axis_us.{axis}"] = value + waited
        if job.report_work:
            result["tokens"] = 4096.0 * 8 * work
        return result

    def frame(self, steps: int, first_step: int = 0, drop: float = 0.0) -> pd.DataFrame:
        """Return `rank_steps` rows of `steps` steps; `drop` is the share of rows lost on the way."""
        parts: list[dict[str, FloatArray]] = []
        numbers: list[np.ndarray] = []
        for steps_S, channels in self.chunks(steps, first_step):
            numbers.append(steps_S)
            parts.append({name: value.astype(np.float32) for name, value in channels.items()})
        dense = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        step_numbers = np.concatenate(numbers)
        begin = self._now_ms + np.concatenate([[0.0], np.cumsum(dense["step_us"].max(axis=1) / 1000.0)])
        self._now_ms = float(begin[-1])
        ranks = self.job.ranks
        frame = pd.DataFrame({"ts": np.repeat(np.round(begin[:-1]), ranks)})
        frame["step"] = np.repeat(step_numbers, ranks).astype(float)
        frame["rank"] = np.tile(np.arange(ranks), len(step_numbers)).astype(float)
        frame["device"] = np.tile(self.device_R, len(step_numbers)).astype(float)
        for name, value in dense.items():
            frame[name] = value.reshape(-1)
        frame["mode"] = constant("async" if self.job.asynchronous else "sync", len(frame))
        for name, text in (("cluster", self.cluster.name), ("job", self.job.name), ("run", self.job.run)):
            frame[name] = constant(text, len(frame))
        names = [self.cluster.node_name(i) for i in range(self.cluster.nodes)]
        frame["node"] = coded(np.tile(self.node_R, len(step_numbers)), names)
        if drop:
            keep = np.random.default_rng([self._seed, 3]).random(len(frame)) >= drop
            frame = frame[keep]
        return frame.reset_index(drop=True)

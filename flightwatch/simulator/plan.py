"""A cluster of a wanted size with jobs on it, and faults as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flightwatch.core.errors import ConfigError
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import TELEMETRY_KINDS, TIMING_KINDS, Fault
from flightwatch.simulator.timing import TimingModel

DEVICES_PER_NODE = 8
CALIBRATION_STEPS = 50
#: Faults of one device; the others are of a node, a rack, a zone or a switch.
OF_ONE_DEVICE = frozenset(
    ("slow_gpu", "memory_bandwidth", "thermal_gpu", "intermittent", "gradual", "fan_failure", "paste_failure",
     "ecc_ramp", "row_remap", "stuck_sensor", "missing_sensor", "noisy_sensor", "implausible_sensor", "voltage_droop")
)  # fmt: skip
_FAULT = re.compile(
    r"(?P<kind>[a-z_]+)@(?P<node>\d+)(?::(?P<device>\d+))?(?:-(?P<other>\d+))?(?P<rest>(,[a-z_]+=[^,]+)*)"
)


@dataclass(frozen=True)
class TimedFault:
    """A fault placed by seconds since the begin of a simulation rather than by steps.

    Attributes
    ----------
    fault: kind, place and severity. after_s: when it begins. for_s: how long it lasts, None: until the end.
    """

    fault: Fault
    after_s: float
    for_s: float | None = None

    def in_steps(self, step_s: float, offset_s: float = 0.0) -> Fault:
        """Return the fault with its times in steps of `step_s` seconds, all of them `offset_s` later."""
        start = round((self.after_s + offset_s) / step_s)
        end = None if self.for_s is None else start + max(1, round(self.for_s / step_s))
        return replace(self.fault, start_step=start, end_step=end)


def parse_fault(text: str, cluster: Cluster, severity: float = 0.2) -> TimedFault:
    """Read `KIND@NODE[:DEVICE][-OTHER][,severity=S][,after=SECONDS][,for=SECONDS]`; NODE is the number of a node.

    Raises
    ------
    ConfigError: no such kind or place, or it is written in another way.
    """
    match = _FAULT.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"fault {text!r}: write it as KIND@NODE:DEVICE,severity=0.2,after=60,for=600")
    kind, node = match["kind"], int(match["node"])
    if kind not in TIMING_KINDS and kind not in TELEMETRY_KINDS:
        raise ConfigError(f"fault {text!r}: known kinds are {', '.join(sorted({*TIMING_KINDS, *TELEMETRY_KINDS}))}")
    device = int(match["device"]) if match["device"] else 0 if kind in OF_ONE_DEVICE else None
    other = int(match["other"]) if match["other"] else None
    if max(node, other or 0) >= cluster.nodes or (device or 0) >= cluster.devices_per_node:
        raise ConfigError(
            f"fault {text!r}: there are nodes 0 to {cluster.nodes - 1} of {cluster.devices_per_node} devices"
        )
    numbers = {"severity": severity, "after": 60.0, "for": 0.0}
    for pair in filter(None, match["rest"].split(",")):
        name, _, value = pair.partition("=")
        try:
            numbers[name] = float(value) if name in numbers else float("nan")
        except ValueError:
            numbers[name] = float("nan")
        if not 0 <= numbers[name] < 1e9:
            raise ConfigError(f"fault {text!r}: {pair} is not one of severity=, after=, for= with a number")
    fault = Fault(kind, node, device, other, severity=numbers["severity"])
    return TimedFault(fault, numbers["after"], numbers["for"] or None)


def cluster_of(gpus: int, prefix: str, name: str) -> Cluster:
    """Return a cluster with at least `gpus` accelerators: eight a node, racks of four nodes, zones of four racks."""
    if gpus < 1:
        raise ConfigError("a cluster has at least one GPU")
    per_node = min(DEVICES_PER_NODE, gpus)
    nodes = -(-gpus // per_node)
    return Cluster(
        nodes=nodes, devices_per_node=per_node, nodes_per_rack=4, racks_per_zone=4, nodes_per_leaf=8, name=name,
        prefix=prefix,
    )  # fmt: skip


def jobs_on(cluster: Cluster, prefix: str, step_s: float, run: str) -> list[Job]:
    """Return jobs that fill about seven eighths of a cluster: one half, a quarter, an eighth; the rest is idle.

    A cluster of fewer than eight nodes gets one job on all of its nodes.
    """
    per_node = cluster.devices_per_node
    shares = (("pretrain", 2), ("moe", 4), ("finetune", 8)) if cluster.nodes >= 8 else (("pretrain", 1),)
    jobs, first = [], 0
    for name, part in shares:
        nodes = cluster.nodes // part
        job = _layout(Job(name=f"{prefix}{name}", run=run, first_node=first), nodes, per_node)
        jobs.append(calibrated(job, cluster, step_s))
        first += nodes
    return jobs


def _layout(job: Job, nodes: int, per_node: int) -> Job:
    """Tensor parallel inside a node, up to four pipeline stages, the rest data parallel."""
    stages = next((pp for pp in (4, 2) if nodes % pp == 0 and nodes // pp >= 4), 1)
    if nodes // stages < 4:
        return replace(job, dp=nodes * per_node)
    return replace(job, tp=per_node, pp=stages, dp=nodes // stages, stage_imbalance=0.1, checkpoint_every=200)


def calibrated(job: Job, cluster: Cluster, step_s: float) -> Job:
    """Return the job with the compute time that makes its steps take about `step_s` seconds, pauses included."""
    _, channels = next(TimingModel(cluster, replace(job, step_ms=1000.0), (), 0, 0).chunks(CALIBRATION_STEPS, 1))
    return replace(job, step_ms=1e9 * step_s / float(channels["step_us"].mean()))


def standard_faults(cluster: Cluster) -> list[str]:
    """Return three faults worth looking at, as people write them: a slow GPU, a warming zone, a port losing packets."""
    last = cluster.nodes - 1
    return [
        f"slow_gpu@{min(3, last)}:{min(5, cluster.devices_per_node - 1)},severity=0.25,after=40",
        f"cooling_zone@{min(last, cluster.nodes * 5 // 8)},after=20",
        f"packet_loss@{min(last, cluster.nodes * 7 // 16)},after=60",
    ]


def jobs_of_node(cluster: Cluster, jobs: Sequence[Job], node: int) -> list[Job]:
    """Return the jobs that use a node."""
    return [job for job in jobs if bool((job.place(cluster)[0] == node).any())]

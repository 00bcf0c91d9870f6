"""The closed lists of words used in rows, findings and messages.

Python >= 3.8 syntax: this module is imported inside training processes.
Adding a word here is a change of the public contract and belongs in CHANGELOG.md.
"""

import hashlib
from enum import Enum
from typing import Iterable, Tuple

DATABASE = "flightwatch"


class Lane(str, Enum):
    """A stream of batches with its own sequence, quota and place in the eviction order."""

    EVENTS = "events"
    SCALARS = "scalars"
    SAMPLES = "samples"
    OPS = "ops"
    BLOBS = "blobs"


#: Lanes in the order in which a full spool gives them up: the first is dropped first.
EVICTION_ORDER: Tuple[Lane, ...] = (Lane.BLOBS, Lane.OPS, Lane.SAMPLES, Lane.SCALARS, Lane.EVENTS)
#: Lanes in the order in which a backlog is sent after an outage.
DRAIN_ORDER: Tuple[Lane, ...] = tuple(reversed(EVICTION_ORDER))


class Topic(str, Enum):
    """Names of the bus topics."""

    EVENTS = "flightwatch.rows.events"
    SCALARS = "flightwatch.rows.scalars"
    SAMPLES = "flightwatch.rows.samples"
    OPS = "flightwatch.rows.ops"
    BLOBS = "flightwatch.blobs"
    COMMANDS = "flightwatch.commands"
    FINDINGS = "flightwatch.findings"
    DEAD = "flightwatch.dead"


TOPIC_OF_LANE = {
    Lane.EVENTS: Topic.EVENTS,
    Lane.SCALARS: Topic.SCALARS,
    Lane.SAMPLES: Topic.SAMPLES,
    Lane.OPS: Topic.OPS,
    Lane.BLOBS: Topic.BLOBS,
}


class EventSeverity(str, Enum):
    """How bad one event is, as its source says it."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class Severity(str, Enum):
    """How urgently a person should look at a finding or an incident."""

    P1 = "P1"
    P2 = "P2"
    P3 = "P3"
    P4 = "P4"
    INFO = "info"


class EventSource(str, Enum):
    """Who reported an event."""

    KERNEL = "kernel"
    COMM = "comm"
    PROBE = "probe"
    AGENT = "agent"
    SCHEDULER = "scheduler"


class FindingKind(str, Enum):
    """What a finding says is wrong."""

    SLOW = "slow"
    FAIL_SLOW = "fail_slow"
    IMBALANCE = "imbalance"
    JOB_SLOW = "job_slow"
    JOB_REGRESSION = "job_regression"
    HANG = "hang"
    CRASH = "crash"
    DEVICE_ERROR = "device_error"
    NONFINITE = "nonfinite"
    NUMERICS = "numerics"
    LOSS_SPIKE = "loss_spike"
    GRAD_NORM = "grad_norm"
    SDC_PRECURSOR = "sdc_precursor"
    REPLICA_DIGEST = "replica_digest"
    OVERHEAT = "overheat"
    COOLING = "cooling"
    ECC = "ecc"
    RDMA = "rdma"
    LINK_FLAP = "link_flap"
    THROTTLE = "throttle"
    POWER = "power"
    STORAGE = "storage"
    SENSOR = "sensor"
    DEAD_NODE = "dead_node"
    CONFIG_DRIFT = "config_drift"
    CLOCK_SKEW = "clock_skew"
    ANOMALY = "anomaly"
    COVERAGE = "coverage"
    BLIND = "blind"


class FindingScope(str, Enum):
    """What kind of thing a finding is about."""

    RANK = "rank"
    DEVICE = "device"
    NODE = "node"
    PORT = "port"
    LINK = "link"
    RACK = "rack"
    SLOT = "slot"
    COOLING_ZONE = "cooling_zone"
    POWER_ZONE = "power_zone"
    FACILITY = "facility"
    LEAF_SWITCH = "leaf_switch"
    SCALE_UP_DOMAIN = "scale_up_domain"
    STORAGE_TARGET = "storage_target"
    STAGE = "stage"
    JOB = "job"
    PIPELINE = "pipeline"


class FindingState(str, Enum):
    """Life of a finding: one row on each change, never one per cycle."""

    RAISED = "raised"
    CHANGED = "changed"
    CLEARED = "cleared"


class OpLevel(str, Enum):
    """Granularity of an `op_timings` row; step arithmetic uses only PHASE."""

    PHASE = "phase"
    BLOCK = "block"
    OP = "op"


class OpKind(str, Enum):
    """What an op does with its time."""

    STEP = "step"
    COMPUTE = "compute"
    COMM = "comm"
    IO = "io"
    IDLE = "idle"
    CHECKPOINT = "checkpoint"


class RunPhase(str, Enum):
    """Phase of one attempt (run) of a job."""

    RENDEZVOUS = "rendezvous"
    INIT = "init"
    COMPILE = "compile"
    RESTORE = "restore"
    TRAIN = "train"
    EVALUATE = "evaluate"
    CHECKPOINT = "checkpoint"


class StorageKind(str, Enum):
    """Kind of a `storage_samples` target."""

    DISK = "disk"
    NFS = "nfs"
    LUSTRE = "lustre"
    GPFS = "gpfs"
    BEEGFS = "beegfs"


class ExitCode(int, Enum):
    """What a `flightwatch` command's exit status says."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    MALFORMED = 3
    UNRECOGNISED = 4


#: Counter values that a register of that width shows when it can count no further.
SATURATED_COUNTERS = (2**32 - 1, 2**64 - 1)


def process_group_name(desc: str, global_ranks: Iterable[int]) -> str:
    """Name a process group the same way on every rank.

    Parameters
    ----------
    desc: the group's description, for example "tp" or "default_pg".
    global_ranks: members as global ranks, any order, duplicates allowed.

    Returns
    -------
    `<desc>:<first 12 hex digits of sha256 of the sorted ranks joined by ','>`
    """
    members = ",".join(str(rank) for rank in sorted(set(global_ranks)))
    return f"{desc}:{hashlib.sha256(members.encode()).hexdigest()[:12]}"

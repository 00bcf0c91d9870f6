"""The labels by which training operators mark their pods: Kubeflow, Volcano, JobSet, Ray, LeaderWorkerSet, Kueue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Labels or annotations that hold the job's name, most specific first.
JOB_LABELS = (
    "training.kubeflow.org/job-name", "volcano.sh/job-name", "jobset.sigs.k8s.io/jobset-name", "ray.io/cluster",
    "leaderworkerset.sigs.k8s.io/name", "mpi-job-name", "pytorch-job-name", "tf-job-name", "job-name",
    "batch.kubernetes.io/job-name",
)  # fmt: skip
INDEX_LABELS = (
    "training.kubeflow.org/replica-index", "pytorch-replica-index", "volcano.sh/task-index",
    "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/job-global-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
)  # fmt: skip
ROLE_LABELS = (
    "training.kubeflow.org/replica-type", "pytorch-replica-type", "volcano.sh/task-spec",
    "jobset.sigs.k8s.io/replicatedjob-name", "ray.io/node-type",
)  # fmt: skip
QUEUE_LABELS = ("kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "scheduling.volcano.sh/queue-name")
RUN_LABELS = ("jobset.sigs.k8s.io/restart-attempt", "volcano.sh/job-version", "batch.kubernetes.io/controller-uid",
              "controller-uid")  # fmt: skip


@dataclass(frozen=True)
class PodOwner:
    """What a pod's labels say about its job.

    Attributes
    ----------
    index: the pod's number within its role, None when unlabelled. It is not a rank: a pod runs several ranks.
    """

    job: str
    role: str | None
    index: int | None
    run: str | None
    queue: str | None

    def attrs(self) -> dict[str, str]:
        """Return what is known as text for an event."""
        known = {"role": self.role, "index": self.index, "run": self.run, "queue": self.queue}
        return {name: str(value) for name, value in known.items() if value is not None}


def job_of(labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> PodOwner | None:
    """Return the owner that labels (then annotations) name, None for a pod that belongs to no training job."""
    known = {**(annotations or {}), **labels}
    job = _first(known, JOB_LABELS)
    if not job:
        return None
    index = _first(known, INDEX_LABELS)
    number = int(index) if index and index.isascii() and index.isdigit() and len(index) < 8 else None
    return PodOwner(
        job, _first(known, ROLE_LABELS), number, _first(known, RUN_LABELS), _first(known, QUEUE_LABELS)
    )  # fmt: skip


def _first(known: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((known[name] for name in names if known.get(name)), None)

"""Which job, attempt and rank this process is, from what launchers put into the environment."""

import os
import re
import sys
from typing import Dict, Mapping, NamedTuple, Optional

#: The first that is set counts; the same order as the agent uses for processes without a probe.
JOB_NAMES = ("FLIGHTWATCH_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID", "JOB_NAME")
RUN_NAMES = ("FLIGHTWATCH_RUN", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
WORLD_NAMES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANK_NAMES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
AXES = ("tp", "cp", "pp", "vpp", "dp", "dp_replicate", "dp_shard", "ep", "etp")
#: What frameworks call an axis, as device-mesh dimension or group description.
AXIS_WORDS = {
    "tensor": "tp",
    "tensor_model_parallel_group": "tp",
    "model": "tp",
    "context": "cp",
    "context_parallel_group": "cp",
    "pipe": "pp",
    "pipeline": "pp",
    "pipeline_model_parallel_group": "pp",
    "data": "dp",
    "data_parallel": "dp",
    "tensor_parallel": "tp",
    "sequence_parallel": "cp",
    "pipeline_parallel": "pp",
    "expert_parallel": "ep",
    "ddp": "dp",
    "data_parallel_group": "dp",
    "replicate": "dp_replicate",
    "fsdp": "dp_shard",
    "shard": "dp_shard",
    "expert": "ep",
    "expert_model_parallel_group": "ep",
}
_LONGEST = 200
#: Role and number at the end of a pod's name (PyTorchJob, MPIJob, Volcano, JobSet, Indexed Job), as the agent reads it.
_POD = re.compile(r"(.+?)-(?:(?:master|worker|launcher|chief|ps|task|server|node|trainer)-\d+(?:-\w+)*|\d+-\w{5}|\d+)$")
_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class Identity(NamedTuple):
    """Who this process is.

    Attributes
    ----------
    given: False when no launcher named the job and the name was made from the address of the rendezvous.
    local_rank: index of the process on its node, None outside a launcher.
    """

    job: str
    run: str
    rank: int
    world: int
    local_rank: Optional[int]
    given: bool


def find_identity(
    environment: Mapping[str, str], job: Optional[str] = None, run: Optional[str] = None, rank: Optional[int] = None
) -> Identity:
    """Return the identity; arguments win over the environment.

    torchrun names a job without `--rdzv-id` "none"; such a job, and one without any launcher, is named after its
    pod in Kubernetes, else after its script and the port of its rendezvous, which is the same on all ranks.
    """
    named = job or _first(environment, JOB_NAMES)
    if job is None and named in (None, "none"):
        named = _pod_job(environment)
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    fallback = script + "-" + (environment.get("MASTER_PORT") or str(os.getpid()))
    found_rank = rank if rank is not None else _number(_first(environment, RANK_NAMES))
    return Identity(
        (named or fallback)[:_LONGEST],
        (run or _first(environment, RUN_NAMES) or "0")[:_LONGEST],
        found_rank or 0,
        _number(_first(environment, WORLD_NAMES)) or 1,
        _number(_first(environment, LOCAL_RANK_NAMES)),
        named is not None,
    )


def _pod_job(environment: Mapping[str, str]) -> Optional[str]:
    """Return namespace/name of the job that a pod belongs to, by the name that its operator gave the pod."""
    match = _POD.match(environment.get("HOSTNAME", "")) if "KUBERNETES_SERVICE_HOST" in environment else None
    if match is None:
        return None
    namespace = environment.get("POD_NAMESPACE", "")
    if not namespace:
        try:
            with open(_NAMESPACE_FILE, encoding="utf-8") as file:
                namespace = file.read(256).strip()
        except (OSError, ValueError):
            namespace = ""
    return namespace + "/" + match.group(1) if namespace else match.group(1)


def axis_of(word: str) -> Optional[str]:
    """Return the axis that a mesh dimension or a group description names, None for others ("mesh_tp" is tp)."""
    plain = word.lower()
    if plain.startswith("mesh_"):
        plain = plain[5:]
    return plain if plain in AXES else AXIS_WORDS.get(plain)


def role_of_text(text: str) -> Dict[str, int]:
    """Read "tp=0,pp=1" (FLIGHTWATCH_ROLE); parts that are no axis with a number are passed over."""
    role = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        axis, number = axis_of(name.strip()), _number(value.strip())
        if axis is not None and number is not None:
            role[axis] = number
    return role


def _first(environment: Mapping[str, str], names: "tuple[str, ...]") -> Optional[str]:
    for name in names:
        if environment.get(name):
            return environment[name]
    return None


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 9 else None

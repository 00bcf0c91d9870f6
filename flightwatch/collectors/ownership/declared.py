"""Owners that are declared: files written by a prolog, and the kubelet's record of devices given to pods."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from flightwatch.collectors.ownership.owners import Owner
from flightwatch.collectors.tree import Tree

#: Where a prolog leaves one file a job and an epilog removes it.
JOB_FILES = "run/flightwatch/jobs"
POD_LOGS = "var/log/pods"
CHECKPOINT = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
#: Role and number at the end of a pod's name: PyTorchJob, MPIJob, Volcano, JobSet, Indexed Job.
_ROLE = re.compile(r"(.+?)-(?:(?:master|worker|launcher|chief|ps|task|server|node|trainer)-\d+(?:-\w+)*|\d+-\w{5}|\d+)")
_FILES_LIMIT = 256
_DEVICES_LIMIT = 64


def from_job_files(tree: Tree) -> dict[int, Owner]:
    """Return device to owner from files of the form {"job": "123", "run": "0", "devices": [0, 1], "ranks": [8, 9]}.

    `run` and `ranks` may be absent; what is malformed is passed over.
    """
    owners: dict[int, Owner] = {}
    for name in list(tree.listdir(JOB_FILES))[:_FILES_LIMIT]:
        document = _object(tree.read(f"{JOB_FILES}/{name}"))
        job, devices, ranks = document.get("job"), document.get("devices"), document.get("ranks")
        if not isinstance(job, (str, int)) or isinstance(job, bool) or not isinstance(devices, list):
            continue
        for index, device in enumerate(devices[:_DEVICES_LIMIT]):
            rank = ranks[index] if isinstance(ranks, list) and index < len(ranks) else None
            if _is_number(device):
                owners[device] = Owner(str(job)[:200], str(document.get("run", "0"))[:200],
                                       rank if _is_number(rank) else None, "prolog")  # fmt: skip
    return owners


def pod_devices(tree: Tree) -> dict[str, list[str]]:
    """Return pod uid to the ids of the accelerators the kubelet gave it.

    Read from the kubelet's checkpoint file rather than from its pod-resources socket, which speaks gRPC:
    the file holds the same record, needs no third-party package, and is rewritten on every change.
    Both forms are read: a list of ids (Kubernetes < 1.20) and ids by NUMA node.
    """
    data = _object(tree.read(CHECKPOINT)).get("Data")
    entries = data.get("PodDeviceEntries") if isinstance(data, dict) else None
    found: dict[str, list[str]] = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("PodUID"), str):
            continue
        if not _is_accelerator(str(entry.get("ResourceName", ""))):
            continue
        ids = entry.get("DeviceIDs")
        groups = ids.values() if isinstance(ids, dict) else [ids]
        names = [name for group in groups if isinstance(group, list) for name in group if isinstance(name, str)]
        found.setdefault(entry["PodUID"], []).extend(names[:_DEVICES_LIMIT])
    return found


def pod_owners(tree: Tree) -> dict[str, Owner]:
    """Return pod uid to owner from the names of the pods' log folders ("namespace_name_uid").

    Operators name a pod after its job and role ("llama-worker-3"); the part before the role is the job.
    """
    owners: dict[str, Owner] = {}
    for folder in list(tree.listdir(POD_LOGS))[:_FILES_LIMIT]:
        namespace, _, rest = folder.partition("_")
        name, _, uid = rest.rpartition("_")
        match = _ROLE.fullmatch(name)
        if uid and match:
            owners[uid] = Owner(f"{namespace}/{match[1]}"[:200], "0", None, "kubelet")
    return owners


def from_pods(
    assigned: Mapping[str, list[str]], pods: Mapping[str, Owner], indices: Mapping[str, int]
) -> dict[int, Owner]:
    """Return device to owner for devices given to pods.

    Parameters
    ----------
    assigned: pod uid to device ids.
    pods: pod uid to owner; a pod without one owns its devices under its uid.
    indices: device id (uuid) to index on this node; a replica's suffix ("GPU-…::3") is ignored.
    """
    owners: dict[int, Owner] = {}
    for uid, names in assigned.items():
        owner = pods.get(uid, Owner(f"pod:{uid}", "0", None, "kubelet"))
        for name in names:
            plain = name.split("::", 1)[0]
            index = indices.get(plain)
            if index is None and plain.isascii() and plain.isdigit() and len(plain) < 3:
                index = int(plain)
            if index is not None:
                owners[index] = owner
    return owners


def _is_accelerator(resource: str) -> bool:
    kind = resource.partition("/")[2].lower()
    return any(word in kind for word in ("gpu", "npu", "mlu", "dcu", "ascend", "mig-", "accelerator"))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 65536


def _object(content: bytes | None) -> dict[str, object]:
    try:
        document = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}

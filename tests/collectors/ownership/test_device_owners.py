"""Which job and rank owns a device: cgroups, allowed names, prolog files, the kubelet's record, changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from flightwatch.collectors.environment import environment_at
from flightwatch.collectors.ownership.board import OwnerBoard, OwnerSink
from flightwatch.collectors.ownership.collector import OwnershipCollector
from flightwatch.collectors.ownership.declared import from_job_files, from_pods, pod_devices, pod_owners
from flightwatch.collectors.ownership.device_processes import from_open_files
from flightwatch.collectors.ownership.owners import Owner, find_owners
from flightwatch.collectors.ownership.pod_labels import job_of
from flightwatch.collectors.ownership.process_words import allowed_words, pod_of, slurm_job_of
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Row

UID = "11111111-2222-3333-4444-555555555555"


def process(root: Path, pid: int, cgroup: str = "0::/\n", **words: str) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "environ").write_bytes(b"\0".join(f"{name}={value}".encode() for name, value in words.items()) + b"\0")
    (folder / "cgroup").write_text(cgroup)


def write(root: Path, path: str, content: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


def test_only_allowed_names_are_read(tmp_path: Path) -> None:
    process(tmp_path, 7, RANK="3", AWS_SECRET_ACCESS_KEY="hidden", SLURM_JOB_ID="9", LOCAL_RANK="\x1b[31m")
    assert allowed_words(FolderTree(str(tmp_path)), 7) == {"RANK": "3", "SLURM_JOB_ID": "9"}


@pytest.mark.parametrize(
    ("cgroup", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n", "123"),
        ("9:memory:/slurm/uid_1000/job_456/step_batch\n", "456"),
        ("0::/user.slice/job_x\n", None),
    ],
)
def test_slurm_cgroups(cgroup: str, job: str | None, tmp_path: Path) -> None:
    process(tmp_path, 7, cgroup)
    assert slurm_job_of(FolderTree(str(tmp_path)), 7) == job


def test_pod_cgroups_of_both_drivers(tmp_path: Path) -> None:
    process(tmp_path, 1, f"0::/kubepods.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-1.scope\n")
    process(tmp_path, 2, f"5:cpu:/kubepods/burstable/pod{UID}/abc\n")
    tree = FolderTree(str(tmp_path))
    assert pod_of(tree, 1) == pod_of(tree, 2) == UID


def test_the_cgroup_beats_an_environment_that_claims_another_job(tmp_path: Path) -> None:
    process(tmp_path, 7, "0::/system.slice/slurmstepd.scope/job_9/step_0\n", SLURM_JOB_ID="1", RANK="5")
    owners = find_owners(FolderTree(str(tmp_path)), {7: [2]}, {}, {})
    assert owners == {2: Owner("9", "0", 5, "process")}


def test_array_tasks_are_named_as_slurm_names_them(tmp_path: Path) -> None:
    process(tmp_path, 7, "0::/slurm/job_77/step_0\n", SLURM_JOB_ID="77", SLURM_ARRAY_JOB_ID="70",
            SLURM_ARRAY_TASK_ID="4", SLURM_RESTART_COUNT="2", SLURM_PROCID="1")  # fmt: skip
    assert find_owners(FolderTree(str(tmp_path)), {7: [0]}, {}, {})[0] == Owner("70_4", "2", 1, "process")


def test_a_monitor_without_rank_gives_way_and_prolog_files_fill_the_rest(tmp_path: Path) -> None:
    process(tmp_path, 5, JOB_NAME="monitor")
    process(tmp_path, 7, SLURM_JOB_ID="9", RANK="8")
    write(
        tmp_path, "run/flightwatch/jobs/9.json", json.dumps({"job": "9", "run": "3", "devices": [0, 1], "ranks": [8]})
    )
    write(tmp_path, "run/flightwatch/jobs/bad.json", "{")
    tree = FolderTree(str(tmp_path))
    owners = find_owners(tree, {5: [0], 7: [0]}, from_job_files(tree), {})
    assert owners[0] == Owner("9", "3", 8, "process")
    assert owners[1] == Owner("9", "3", None, "prolog")


@pytest.mark.parametrize("ids", [["GPU-aa"], {"-1": ["GPU-aa::2"], "0": []}])
def test_kubelet_checkpoint_of_both_forms(ids: object, tmp_path: Path) -> None:
    entries = [
        {"PodUID": UID, "ContainerName": "c", "ResourceName": "nvidia.com/gpu", "DeviceIDs": ids},
        {"PodUID": UID, "ContainerName": "c", "ResourceName": "rdma/hca", "DeviceIDs": ["x"]},
        "garbage",
    ]
    write(tmp_path, "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
          json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 1}))  # fmt: skip
    (tmp_path / f"var/log/pods/ml_llama-worker-3_{UID}").mkdir(parents=True)
    tree = FolderTree(str(tmp_path))
    owners = from_pods(pod_devices(tree), pod_owners(tree), {"GPU-aa": 5})
    assert owners == {5: Owner("ml/llama", "0", None, "kubelet")}


def test_operator_labels() -> None:
    kubeflow = job_of({"training.kubeflow.org/job-name": "j", "training.kubeflow.org/replica-index": "4"})
    assert kubeflow is not None
    assert (kubeflow.job, kubeflow.index) == ("j", 4)
    volcano = job_of({}, {"volcano.sh/job-name": "v", "volcano.sh/task-spec": "worker"})
    assert volcano is not None
    assert (volcano.job, volcano.role) == ("v", "worker")
    assert job_of({"app": "web"}) is None


def test_open_device_files_without_monitors(tmp_path: Path) -> None:
    links = {"10": ["/dev/nvidia0", "/dev/nvidiactl"], "11": ["/dev/nvidia1"], "12": ["/dev/nvidia0", "/dev/nvidia1"]}
    for pid, targets in links.items():
        (tmp_path / pid / "fd").mkdir(parents=True)
        for number, target in enumerate(targets):
            (tmp_path / pid / "fd" / str(number)).symlink_to(target)
    assert from_open_files(str(tmp_path)) == {10: [0], 11: [1]}


def test_processes_and_addresses_that_a_vendors_collector_knows(tmp_path: Path) -> None:
    for name in ("kfd", "sda"):
        write(tmp_path, f"dev/{name}", "")
    process(tmp_path, 70, "0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n", RANK="3")
    entry = {"PodUID": UID, "ResourceName": "amd.com/gpu", "DeviceIDs": ["0000:1c:00.0", "0000:ff:00.0"]}
    write(tmp_path, "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
          json.dumps({"Data": {"PodDeviceEntries": [entry]}}))  # fmt: skip
    environment = environment_at(str(tmp_path))
    environment.live = True
    environment.devices.offer("amd", {"0000:05:00.0": 0, "0000:1c:00.0": 1})
    environment.devices.offer_processes("amd", {70: [0]})
    rows = list(OwnershipCollector(environment).collect(1000))
    assert {(row.table, row.values["device"], row.values["job"], row.values.get("rank")) for row in rows} == {
        ("placements", 0, "9", 3), ("events", 1, f"pod:{UID}", None),
    }  # fmt: skip


def test_placements_begin_and_end_on_change_only(tmp_path: Path) -> None:
    collector = OwnershipCollector(environment := environment_at(str(tmp_path)))
    with pytest.raises(NoData):
        collector.collect(1000)
    write(tmp_path, "run/flightwatch/jobs/9.json", '{"job": "9", "devices": [0, 1], "ranks": [4]}')
    first = list(collector.collect(2000))
    assert [(row.table, row.values["device"]) for row in first] == [("placements", 0), ("events", 1)]
    assert list(collector.collect(3000)) == []
    sample = Row("device_samples", {"device": 0, "job": None})
    (stamped,) = environment.owners.stamp([sample])
    assert (stamped.values["job"], stamped.values["rank"]) == ("9", 4)
    (tmp_path / "run/flightwatch/jobs/9.json").unlink()
    ended = list(collector.collect(4000))
    assert [(row.values.get("valid_until"), row.values["ts"]) for row in ended if row.table == "placements"] == [
        (4000, 2000)
    ]
    with pytest.raises(NoData):
        collector.collect(5000)


def test_the_probes_own_job_is_not_overwritten() -> None:
    board = OwnerBoard()
    board.replace({0: Owner("slurm", "0", 1, "process")})
    kept: list[Row] = []

    class Keep:
        def emit(self, rows: Iterable[Row]) -> None:
            kept.extend(rows)

        def flush(self, timeout_seconds: float) -> bool:
            return True

    OwnerSink(Keep(), board).emit([Row("device_samples", {"device": 0, "job": "probe"}), Row("events", {"device": 0})])
    assert [row.values.get("job") for row in kept] == ["probe", None]

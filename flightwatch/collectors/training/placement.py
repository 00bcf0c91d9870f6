"""Where this rank stands: role on each parallel axis, process groups, device; told when known and repeated.

Sources, the surest first: `attach(role=...)`, FLIGHTWATCH_ROLE, device meshes, DeepSpeed's and Megatron's
parallel state, and a DDP, FSDP or ZeRO root over all ranks (whose data-parallel index is the rank). Only what
answers without communication is asked: some getters of DeepSpeed make process groups.
"""

import sys
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from flightwatch.collectors.training.hooks import around
from flightwatch.collectors.training.identity import axis_of
from flightwatch.collectors.training.probe import Probe
from flightwatch.core.vocabulary import process_group_name

#: Axes whose communication goes through functional collectives, which are not seen in compiled graphs.
_UNSEEN_AXES = ("tp", "cp", "ep", "etp")
_MOST_GROUPS = 64
_MEGATRON = {"tp": "tensor_model_parallel", "pp": "pipeline_model_parallel", "dp": "data_parallel",
             "cp": "context_parallel", "ep": "expert_model_parallel",
             "etp": "expert_tensor_parallel"}  # fmt: skip
#: Methods of the model-parallel unit that a DeepSpeed job brings (Megatron's, or its own pipeline grid).
_DEEPSPEED = {
    "tp": ("get_tensor_model_parallel_rank", "get_model_parallel_rank", "get_slice_parallel_rank"),
    "pp": ("get_pipeline_model_parallel_rank", "get_pipe_parallel_rank"),
    "dp": ("get_data_parallel_rank",),
    "cp": ("get_sequence_parallel_rank",),
}


class Placement:
    """Role and groups of one rank."""

    def __init__(self, probe: Probe, given: Dict[str, int]) -> None:
        self._probe = probe
        self._given = given
        self._meshes: List[Any] = []
        self._names: Dict[str, str] = {}
        self._groups: Dict[str, Dict[str, Any]] = {}
        self._since_ms: Optional[int] = None
        self.functional_seen = False

    def install(self, torch: Any) -> None:
        """Note device meshes that are made from now on."""
        module = sys.modules.get("torch.distributed.device_mesh")
        mesh_class = getattr(module, "DeviceMesh", None)
        if mesh_class is None or not isinstance(mesh_class, type):
            return

        def note(mesh: Any, *_args: Any, **_kwargs: Any) -> Any:
            return mesh

        def made(mesh: Any, _started: int, _ended: int, _result: Any) -> None:
            if mesh is not None and len(self._meshes) < 32:
                self._meshes.append(weakref.ref(mesh))

        around(self._probe, mesh_class, "__init__", note, made)

    def data_parallel_over_all(self, axis: str) -> None:
        """Note that the root communicates over all ranks as data parallelism."""
        self._given.setdefault(axis, self._probe.identity.rank)
        for name, group in self._groups.items():
            if group["desc"] == "default_pg":
                self._probe.axis_of_group.setdefault(name, axis)
        self._default_axis = axis

    _default_axis: Optional[str] = None

    def group_name(self, group: Any) -> str:
        """Return the name of a group, the same on every rank; the group is told to the agent the first time."""
        key = _key_of(group)
        name = self._names.get(key)
        if name is None:
            name = self._learn(key, group)
        return name

    def _learn(self, key: str, group: Any) -> str:
        import torch.distributed as dist

        ranks = sorted(dist.get_process_group_ranks(group))
        desc = str(getattr(group, "group_desc", "") or key)
        if desc == "undefined":
            desc = key
        name = process_group_name(desc, ranks)
        if len(self._names) >= _MOST_GROUPS:
            return name
        self._names[key] = name
        axis = axis_of(desc) or (self._default_axis if desc == "default_pg" else None)
        if axis is not None:
            self._probe.axis_of_group[name] = axis
        self._groups[name] = {
            "process_group": name, "desc": desc, "members": rank_runs(ranks), "backend": str(dist.get_backend(group)),
        }  # fmt: skip
        return name

    def name_of_key(self, key: str) -> str:
        """Return the name of the group that torch calls `key`."""
        name = self._names.get(key)
        if name is None:
            from torch.distributed.distributed_c10d import _resolve_process_group

            name = self.group_name(_resolve_process_group(key))  # type: ignore[arg-type,unused-ignore]
        return name

    def default_group_name(self) -> str:
        """Return the name of the group of all ranks."""
        import torch.distributed as dist

        return self.group_name(dist.group.WORLD)

    def learn_meshes(self) -> None:
        """Note which groups device meshes use for which axis: one over all ranks is torch's default group."""
        for mesh in [one() for one in self._meshes]:
            for place, name in enumerate(getattr(mesh, "mesh_dim_names", None) or ()):
                axis = axis_of(str(name))
                if axis is not None:
                    self._probe.axis_of_group.setdefault(self.group_name(mesh.get_group(place)), axis)

    def role(self) -> Dict[str, int]:
        """Return what is known now."""
        found: Dict[str, int] = {}
        found.update(_from_megatron())
        found.update(_from_deepspeed())
        for mesh in (one() for one in self._meshes):
            found.update(_from_mesh(mesh) if mesh is not None else {})
        found.update(self._given)
        unseen = self._probe.compiled or not self.functional_seen
        if unseen and self._meshes and any(axis in found for axis in _UNSEEN_AXES):
            self._probe.hidden_communication = True
        return found

    def rows(self) -> List[Any]:
        """Return rows of placements and process_groups; called on the sending thread and again every minute."""
        now_ms = time.time_ns() // 1_000_000
        if self._since_ms is None:
            self._since_ms = now_ms
        placement: Dict[str, Any] = {"ts": self._since_ms}
        placement.update(self.role())
        if self._probe.device_index is not None:
            placement["device"] = self._probe.device_index
        groups = [("process_groups", dict(values, ts=self._since_ms)) for values in list(self._groups.values())
                  if values["members"] and values["members"][0][0] == self._probe.identity.rank]  # fmt: skip
        return [("placements", placement), *groups]


def _key_of(group: Any) -> str:
    """Return what torch calls a group; before torch 2.2 only its table of groups knew."""
    name = getattr(group, "group_name", None)
    if name is None:
        from torch.distributed.distributed_c10d import _get_process_group_name

        name = _get_process_group_name(group)
    return str(name)


def rank_runs(ranks: List[int]) -> List[List[int]]:
    """Return sorted ranks as runs [first, last, stride]: 10,000 ranks must fit a datagram."""
    runs: List[List[int]] = []
    for rank in ranks:
        if runs:
            first, last, stride = runs[-1]
            if first == last or rank - last == stride:
                runs[-1] = [first, rank, rank - last]
                continue
        runs.append([rank, rank, 1])
    return runs


def _from_mesh(mesh: Any) -> Dict[str, int]:
    names, coordinate = getattr(mesh, "mesh_dim_names", None), mesh.get_coordinate()
    if not names or coordinate is None:
        return {}
    found = {}
    for name, index in zip(names, coordinate):
        axis = axis_of(str(name))
        if axis is not None:
            found[axis] = int(index)
    return found


def _from_megatron() -> Dict[str, int]:
    state = sys.modules.get("megatron.core.parallel_state")
    found: Dict[str, int] = {}
    for axis, words in _MEGATRON.items():
        index = _asked(state, ("get_" + words + "_rank",))
        if index is not None:
            found[axis] = index
    return found


def _from_deepspeed() -> Dict[str, int]:
    groups = sys.modules.get("deepspeed.utils.groups")
    unit = getattr(groups, "mpu", None)
    found: Dict[str, int] = {}
    for axis, names in _DEEPSPEED.items():
        index = _asked(unit, names)
        if index is not None:
            found[axis] = index
    experts = getattr(groups, "_EXPERT_PARALLEL_GROUP", None)
    if isinstance(experts, dict) and len(experts) == 1:
        index = _asked(next(iter(experts.values())), ("rank",))
        if index is not None:
            found["ep"] = index
    return found


def _asked(owner: Any, names: Tuple[str, ...]) -> Optional[int]:
    """Return what the first of the methods that is there says; None where it is not ready."""
    read: Optional[Callable[[], int]] = next((getattr(owner, name) for name in names if hasattr(owner, name)), None)
    if read is None:
        return None
    try:
        return int(read())
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError):
        return None

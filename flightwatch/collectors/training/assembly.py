"""Puts the probe's parts together inside a process that has torch."""

from typing import Any, Dict, List, Optional, Tuple

from flightwatch.collectors.training import functional, hooks
from flightwatch.collectors.training.blocks import Blocks
from flightwatch.collectors.training.checkpoints import Checkpoints
from flightwatch.collectors.training.communication import Communication, Reducer
from flightwatch.collectors.training.compiling import Compiling
from flightwatch.collectors.training.device_time import DeviceTimer, make_timer
from flightwatch.collectors.training.fp8 import Fp8
from flightwatch.collectors.training.late_imports import LateImports
from flightwatch.collectors.training.modules import Modules
from flightwatch.collectors.training.nonfinite import NonFinite
from flightwatch.collectors.training.placement import Placement
from flightwatch.collectors.training.probe import Probe
from flightwatch.collectors.training.worker_server import WorkerServer


def assemble(probe: Probe, given_role: Dict[str, int], check_every: int, late: bool) -> "Assembly":
    """Install everything, and return what arguments of later calls of `attach` go to.

    Parameters
    ----------
    given_role: role from arguments and environment; grows later.
    check_every: non-finite checks every so many steps, 0 for none.
    late: models may exist already.
    """
    import torch
    import torch.distributed as dist

    placement = Placement(probe, given_role)
    probe.repeated.append(placement.rows)
    missing = hooks.install(probe)
    placement.install(torch)
    assembly = Assembly(probe, torch, placement, check_every)
    assembly.modules.install(torch, late)
    imports = LateImports(probe.failed)
    Checkpoints(probe).install(torch, imports)
    Compiling(probe).install(imports)
    if dist.is_available():
        communication = Communication(probe, placement.group_name, assembly.around_wait)
        communication.install(dist)
        parts = functional.Functional(probe, communication, placement.name_of_key, assembly.modules.compiling)

        def patch(module: Any) -> None:
            parts.install(module)
            placement.functional_seen = True

        imports.when(functional.MODULE, patch)
        WorkerServer(probe, probe.wire.path).install(dist)
    if missing:
        probe.event("probe:missing", "info", "not available in this torch: " + "; ".join(missing)[:400], {})
    return assembly


class Assembly:
    """What is decided once the first root module is known.

    Attributes
    ----------
    fp8: FP8 state, of modules and as the job gives it.
    """

    def __init__(self, probe: Probe, torch: Any, placement: Placement, check_every: int) -> None:
        self._probe = probe
        self._torch = torch
        self._placement = placement
        self._device_known = False
        self._timer: Optional[DeviceTimer] = None
        self.modules = Modules(probe, self._root_found, self._blocks_found)
        self.fp8 = Fp8(probe)
        probe.on_close.append(self.fp8.step_closed)
        nonfinite = NonFinite(probe, check_every) if check_every > 0 else None
        if nonfinite is not None:
            hooks.before_update.append(nonfinite.check)
            hooks.on_roots.append(nonfinite.before_backward)
        self._blocks = Blocks(probe, nonfinite, lambda: self._timer)
        hooks.after_backward.append(self._blocks.backward_ends)

    def around_wait(self, begins: bool) -> None:
        """Bracket a wait on the device's stream."""
        if self._timer is not None:
            (self._timer.begin if begins else self._timer.end)("wait")

    def _root_found(self, root: Any) -> None:
        self._probe.learn_identity()
        self.fp8.root_found(self._torch, root)
        self._probe.guard(self._placement.learn_meshes)()
        device = next((parameter.device for parameter in root.parameters()), None)
        synchronous = device is None or device.type == "cpu"
        if not self._device_known and not synchronous:
            self._device_known = True
            self._use_device(device)
        kind = type(root).__name__
        if hasattr(root, "_get_ddp_logging_data") and hasattr(root, "reducer"):
            self._probe.reducer_runs = True
            self._distributed_data_parallel(root, synchronous)
        elif kind == "DeepSpeedEngine" and self._probe.identity.world > 1 and not self._placement.role():
            self._placement.data_parallel_over_all("dp")
        elif (
            kind.startswith(("FSDP", "FullyShardedDataParallel"))
            and self._probe.identity.world > 1
            and not self._placement.role()
        ):
            self._placement.data_parallel_over_all("dp_shard")

    def _distributed_data_parallel(self, root: Any, synchronous: bool) -> None:
        group = getattr(root, "process_group", None)
        name = self._placement.group_name(group) if group is not None else self._placement.default_group_name()
        reducer = Reducer(self._probe, root, name, synchronous)
        read = self._probe.guard(reducer.forward_done)
        identity = id(root)
        self.modules.forward_done.append(lambda module: read() if id(module) == identity else None)
        if group is None or group.size() == self._probe.identity.world:
            self._placement.data_parallel_over_all("dp")

    def _use_device(self, device: Any) -> None:
        """On an asynchronous device the host sees no communication; times come from events."""
        probe, torch = self._probe, self._torch
        probe.hidden_communication = probe.asynchronous = True
        probe.device_index = device.index
        timer = self._timer = make_timer(torch, device.type)
        if timer is None:
            return
        timer.others.append(self._blocks.device_times)
        self.modules.forward_begins.append(lambda _module: timer.begin("forward"))
        self.modules.forward_done.append(lambda _module: timer.end("forward"))
        hooks.before_backward.append(lambda: timer.begin("backward"))
        hooks.after_backward.append(lambda: timer.end("backward"))
        hooks.before_update.append(lambda _step: timer.begin("optimizer"))
        probe.on_close.append(timer.optimizer_and_step_done)

    def _blocks_found(self, root: Any, blocks: List[Tuple[str, Any]]) -> None:
        handles = self._blocks.watch(self._torch, blocks, self.modules.compiling)
        self.modules.handles.setdefault(id(root), []).extend(handles)

"""Functional collectives (`torch.distributed._functional_collectives`): what DTensor and tensor parallelism call.

They reach C++ without a process group's methods, so the Python functions themselves are timed: the call, and
`wait_tensor` where its result is needed. While torch.compile traces, the originals are called; collectives of a
compiled graph are not seen.
"""

import functools
import inspect
from typing import Any, Callable, List

from flightwatch.collectors.training.communication import Communication, payload_bytes
from flightwatch.collectors.training.probe import Probe, now_ns

MODULE = "torch.distributed._functional_collectives"
_FUNCTIONS = (
    "broadcast", "all_reduce", "all_gather_single", "all_gather_single_autograd", "all_gather_tensor",
    "all_gather_tensor_autograd", "all_gather_into_tensor_coalesced", "all_gather_single_coalesced",
    "reduce_scatter_single", "reduce_scatter_single_autograd", "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd", "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced",
    "all_reduce_coalesced", "all_to_all_single", "all_to_all_single_autograd", "permute_tensor",
)  # fmt: skip


class Functional:
    """Patches of the module.

    Parameters
    ----------
    name_of_key: names a process group by the name torch gives it.
    """

    def __init__(
        self, probe: Probe, communication: Communication, name_of_key: Callable[[str], str],
        compiling: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._probe = probe
        self._communication = communication
        self._name_of_key = name_of_key
        self._compiling = compiling
        self._depth = 0

    def install(self, module: Any) -> None:
        """Patch the module's functions; their names differ between torch releases, absent ones are passed over."""
        for name in _FUNCTIONS:
            function = getattr(module, name, None)
            if function is not None:
                setattr(module, name, self._function(name, function, module))
        waited = self._communication.waiting(module.wait_tensor, _storage, again=True)
        original, compiling = module.wait_tensor, self._compiling

        @functools.wraps(original)
        def wait_tensor(tensor: Any) -> Any:
            # Inside another function of this module, or another wait, it is part of that one's time.
            if compiling() or self._depth:
                return original(tensor)
            self._depth += 1
            try:
                return waited(tensor)
            finally:
                self._depth -= 1

        module.wait_tensor = wait_tensor

    def _function(self, op: str, original: Callable[..., Any], module: Any) -> Callable[..., Any]:
        probe, compiling = self._probe, self._compiling
        parameters = list(inspect.signature(original).parameters)
        place = parameters.index("group")

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if compiling() or probe.off or self._depth:
                return original(*args, **kwargs)
            self._depth += 1
            started_ns = now_ns()
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth -= 1
            ended_ns = now_ns()
            try:
                group = args[place] if len(args) > place else kwargs.get("group")
                name = self._name_of_key(str(module._resolve_group_name(group)))
                sent = args[:1] or (kwargs.get(parameters[0]),)
                self._communication.issued((op, name), started_ns, ended_ns, payload_bytes(sent), _awaited(result))
            except Exception as error:  # Ours, not the training's.
                probe.failed(error)
            probe.self_ns += now_ns() - ended_ns
            return result

        return call


def _awaited(result: Any) -> List[int]:
    """Return identities of the tensors that `wait_tensor` will be called with, or with views of."""
    results = result if isinstance(result, (list, tuple)) else (result,)
    return [_storage(one) for one in results[:64]]


def _storage(tensor: Any) -> int:
    """Return the identity of a tensor's memory, 0 where it has none of its own."""
    plain = getattr(tensor, "elem", tensor)
    try:
        return int(plain.untyped_storage()._cdata)
    except (AttributeError, NotImplementedError, RuntimeError):
        return 0

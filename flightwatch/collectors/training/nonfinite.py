"""Where the first NaN or infinity of a step came from: block, phase, and whether parameters were finite.

One sum per block output and per gradient of a block output: a sum over float32 is non-finite when an element
is (23 us where `isfinite().all()` takes 988 us on the same tensor). Finite elements whose float32 sum
overflows (beyond 3e38) would be reported too. Everything is looked at before the optimizer changes parameters.

A gradient that is bad with respect to the output of block i and good with respect to that of block i+1 came
from the backward of block i+1. What comes after the last block is named "head or loss".
On asynchronous devices the sums are copied without waiting and read a step later; whether parameters were
finite is then unknown. That path has not been run on a device.
"""

import functools
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from flightwatch.collectors.training.probe import BACKWARD, Probe
from flightwatch.collectors.training.step import Step

HEAD = "head or loss"
_FORWARD_SUM, _BACKWARD_SUM, _INPUT_SUM, _LOSS = 0, 1, 2, 3
_MOST_SUMS = 4096
#: While parameters stay contaminated every step is bad: only the first of a series is an event.
Origin = Tuple[str, str, Optional[int]]


class NonFinite:
    """Hooks on blocks and the check before the update."""

    def __init__(self, probe: Probe, every: int = 1) -> None:
        self._probe = probe
        self._every = max(1, every)
        self._torch: Any = None
        self._names: List[str] = []
        self._blocks: List[Any] = []
        self._sums: List[Tuple[int, int, Any]] = []
        self._gradient_hooks: List[Callable[..., None]] = []
        self._reported = False
        self._late: List[Tuple[int, List[Tuple[int, int]], Any, Any]] = []

    def watch(self, torch: Any, blocks: List[Tuple[str, Any]], compiling: Callable[[], bool]) -> None:
        """Register hooks on the blocks of one root."""
        self._torch = torch
        first = len(self._names)
        for name, block in blocks:
            index = len(self._names)
            self._names.append(name)
            self._blocks.append(weakref.ref(block))
            # Made once: making a guarded hook costs more than calling it.
            self._gradient_hooks.append(self._probe.guard(functools.partial(self._gradient, index)))
            block.register_forward_hook(self._hook(index, self._block_done, compiling))
            if index == first:
                block.register_forward_pre_hook(self._hook(index, self._block_begins, compiling))

    def _hook(self, index: int, function: Callable[..., None], compiling: Callable[[], bool]) -> Callable[..., None]:
        guarded = self._probe.guard(function)

        def hook(_module: Any, *values: Any) -> None:
            if not compiling():
                guarded(index, values[-1])

        return hook

    def _wanted(self) -> bool:
        probe = self._probe
        return (
            probe.phase != BACKWARD  # Activation checkpointing runs forward again: seen already.
            and probe.current().number % self._every == 0
            and len(self._sums) < _MOST_SUMS
            and self._torch.is_grad_enabled()
        )

    def _block_begins(self, index: int, inputs: Any) -> None:
        tensor = self._tensor(inputs)
        if tensor is not None and self._wanted():
            self._sums.append((_INPUT_SUM, index, self._sum(tensor)))

    def _block_done(self, index: int, output: Any) -> None:
        tensor = self._tensor(output)
        if tensor is None or not self._wanted():
            return
        self._sums.append((_FORWARD_SUM, index, self._sum(tensor)))
        if tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(self._gradient_hooks[index])

    def _gradient(self, index: int, gradients: Any) -> None:
        if gradients and gradients[0] is not None and len(self._sums) < _MOST_SUMS:
            self._sums.append((_BACKWARD_SUM, index, self._sum(gradients[0])))

    def _tensor(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)) and value:
            value = value[0]
        is_tensor = self._torch.is_tensor(value)
        return value if is_tensor and value.is_floating_point() and value.numel() > 0 else None

    def _sum(self, tensor: Any) -> Any:
        local = tensor.detach()
        if hasattr(local, "to_local"):
            local = local.to_local()
        return local.sum() if local.dtype is self._torch.float32 else local.sum(dtype=self._torch.float32)

    def check(self, step: Step) -> None:
        """Look at the sums of one step; report where the first bad one came from."""
        self._read_late()
        sums, self._sums = self._sums, []
        if not sums:
            return
        keys = [(kind, index) for kind, index, _ in sums]
        if sums[0][2].device.type != "cpu":
            self._defer(step.number, keys, self._torch.stack([one[2] for one in sums]))
            return
        self._add_loss(step, keys, sums)
        norm = step.grad_norm
        if norm is None or hasattr(norm, "to_local") or not bool(self._torch.isfinite(norm)):
            # A finite norm of all gradients says that each of them is finite.
            self._add_first_block(keys, sums)
        values = self._torch.stack([one[2] for one in sums])
        finite = self._torch.isfinite(values)
        self._judge(step, step.number, keys, None if bool(finite.all()) else finite.tolist(), True)

    def _add_loss(self, step: Step, keys: List[Tuple[int, int]], sums: List[Tuple[int, int, Any]]) -> None:
        """Add the loss behind the last forward: a bad one after good blocks came from the head or the loss."""
        if step.losses and self._torch.is_tensor(step.losses[-1]) and not hasattr(step.losses[-1], "to_local"):
            after = next((place for place, (kind, _) in enumerate(keys) if kind == _BACKWARD_SUM), len(keys))
            keys.insert(after, (_LOSS, -1))
            sums.insert(after, (_LOSS, -1, step.losses[-1].float().reshape(())))

    def _add_first_block(self, keys: List[Tuple[int, int]], sums: List[Tuple[int, int, Any]]) -> None:
        """Add the gradients of the first block's parameters: nothing before it would show its backward."""
        first = next((index for kind, index in reversed(keys) if kind == _BACKWARD_SUM), None)
        block = self._blocks[first]() if first is not None else None
        if block is None or first is None:
            return
        gradients = [one.grad for one in block.parameters() if one.grad is not None and one.grad.is_floating_point()]
        for gradient in gradients[:32]:
            keys.append((_BACKWARD_SUM, -1))
            sums.append((_BACKWARD_SUM, -1, self._sum(gradient)))

    def _judge(self, step: Optional[Step], number: int, keys: List[Tuple[int, int]], finite: Optional[List[bool]],
               at_once: bool) -> None:  # fmt: skip
        if finite is None:
            self._reported = False
            return
        bad = finite.count(False)
        if step is not None:
            step.nonfinite += bad
        if self._reported:
            return
        self._reported = True
        phase, module, index = self._origin(keys, finite)
        parameters = self._parameters_finite(index) if at_once else None
        attrs: Dict[str, Any] = {"module": module, "phase": phase, "step": number, "nonfinite_checks": bad}
        if parameters is not None:
            attrs["params_finite"] = "true" if parameters else "false"
        message = f"first non-finite value of step {number}: {phase} of {module}"
        if parameters is False:
            message += ", whose parameters were not finite before"
        self._probe.event("nonfinite:" + phase, "error", message, attrs)

    def _origin(self, keys: List[Tuple[int, int]], finite: List[bool]) -> Origin:
        position = finite.index(False)
        kind, index = keys[position]
        if kind == _LOSS:
            return "forward", HEAD, None
        if kind == _INPUT_SUM:
            return "forward", "input of " + self._names[index], None
        if kind == _FORWARD_SUM:
            return "forward", self._names[index], index
        seen = [at for (was, at), good in zip(keys[:position], finite) if was == _BACKWARD_SUM and good and at != index]
        if not seen:
            return "backward", HEAD, None
        return "backward", self._names[seen[-1]], seen[-1]

    def _parameters_finite(self, index: Optional[int]) -> Optional[bool]:
        """Say whether the parameters of a block, or of all blocks, are finite."""
        chosen = self._blocks if index is None else [self._blocks[index]]
        torch = self._torch
        for block in (one() for one in chosen):
            for parameter in block.parameters() if block is not None else ():
                local = parameter.detach()
                local = local.to_local() if hasattr(local, "to_local") else local
                if not bool(torch.isfinite(local).all()):
                    return False
        return True

    def _defer(self, number: int, keys: List[Tuple[int, int]], values: Any) -> None:
        torch = self._torch
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copy.copy_(values, non_blocking=True)
        event = torch.Event(device=values.device.type)
        event.record()
        if len(self._late) < 16:
            self._late.append((number, keys, copy, event))

    def _read_late(self) -> None:
        while self._late and self._late[0][3].query():
            number, keys, copy, _ = self._late.pop(0)
            finite = self._torch.isfinite(copy)
            self._judge(self._probe.previous, number, keys, None if bool(finite.all()) else finite.tolist(), False)

"""Where the first NaN or infinity of a step came from: block, phase, and whether parameters were finite.

**Forward on the host (CPU)**: the loss tells whether a step's forward was finite. Outputs of blocks are only
remembered, weakly, so that no memory lives longer; when the loss is bad, they are looked at in their order before
backward frees them. An output that does not live so long, or is changed in place, is summed at once from the next
step on (the first steps sum all). A bad value that never reaches the loss is not reported.
**Backward, and forward on asynchronous devices**: one sum per gradient of a block output (and per output). A sum
over float32 is non-finite when an element is; finite elements whose float32 sum overflows (beyond 3e38) would be
reported too. Gradients are looked at before the optimizer changes parameters.

A gradient that is bad with respect to the output of block i and good with respect to that of block i+1 came
from the backward of block i+1. What comes after the last block is named "head or loss".
On asynchronous devices the sums are copied without waiting and read a step later; whether parameters were
finite is then unknown. That path has not been run on a device.
"""

import math
import weakref
from typing import Any, Dict, List, Optional, Set, Tuple

from flightwatch.collectors.training.probe import FORWARD, Probe
from flightwatch.collectors.training.step import Step

HEAD = "head or loss"
_FORWARD, _BACKWARD, _INPUT = 0, 1, 2
_MOST_SUMS = 4096
#: Backwards in which every output is summed, while it is learnt which of them live until then.
_LEARNING = 2
Origin = Tuple[str, str, Optional[int]]


class _Seen:
    """One output of a block (or input of the first): its sum, or how to find it again."""

    __slots__ = ("index", "kind", "reference", "total", "version")

    def __init__(self, kind: int, index: int, total: Any, tensor: Any) -> None:
        self.kind = kind
        self.index = index
        self.total = total
        self.reference = weakref.ref(tensor)
        self.version = tensor._version

    def tensor(self) -> Any:
        """Return the values as they were, None when they are gone or were changed."""
        tensor = self.reference()
        return tensor if tensor is not None and tensor._version == self.version else None


class NonFinite:
    """What is remembered of a step, and the checks before backward and before the update."""

    def __init__(self, probe: Probe, every: int = 1) -> None:
        self._probe = probe
        self._every = max(1, every)
        self._torch: Any = None
        self._names: List[str] = []
        self._blocks: List[Any] = []
        self._seen: List[_Seen] = []
        self._judged = 0
        self._sums: List[Tuple[int, int, Any]] = []
        self._short_lived: Set[Tuple[int, int]] = set()
        self._learnt = 0
        self._due = True
        self._bad_step = -1
        self._reported = False
        self._late: List[Tuple[int, List[Tuple[int, int]], Any, Any]] = []

    def watch(self, torch: Any, blocks: List[Tuple[str, Any]]) -> None:
        """Take the blocks of one more root; their numbers go on from those before."""
        self._torch = torch
        self._names += [name for name, _ in blocks]
        self._blocks += [weakref.ref(block) for _, block in blocks]
        self._learnt = 0

    def input(self, index: int, inputs: Any) -> None:
        """Look at the input of a root's first block."""
        tensor = inputs[0] if isinstance(inputs, (tuple, list)) and inputs else inputs
        if self._due and self._probe.phase == FORWARD:
            self._remember(_INPUT, index, tensor)

    def output(self, index: int, tensor: Any) -> None:
        """Look at the output of a block, in a forward that trains."""
        if self._due:
            self._remember(_FORWARD, index, tensor)

    def gradient(self, index: int, gradients: Any) -> None:
        """Look at the gradient with respect to the output of a block."""
        if self._due and gradients and gradients[0] is not None and len(self._sums) < _MOST_SUMS:
            self._sums.append((_BACKWARD, index, self._sum(gradients[0])))

    def _remember(self, kind: int, index: int, tensor: Any) -> None:
        if self._learnt >= _LEARNING and (kind, index) not in self._short_lived:
            self._seen.append(_Seen(kind, index, None, tensor))
            return
        if not (self._torch.is_tensor(tensor) and tensor.is_floating_point() and tensor.numel() > 0):
            return
        if len(self._seen) + len(self._sums) >= _MOST_SUMS:
            return
        if tensor.device.type != "cpu":
            self._learnt = 0
            self._sums.append((kind, index, self._sum(tensor)))
        else:
            self._seen.append(_Seen(kind, index, self._sum(tensor), tensor))

    def _sum(self, tensor: Any) -> Any:
        if type(tensor) is self._torch.Tensor and not tensor.requires_grad and tensor.dtype is self._torch.float32:
            return tensor.sum()
        local = tensor.detach()
        if hasattr(local, "to_local"):
            local = local.to_local()
        return local.sum() if local.dtype is self._torch.float32 else local.sum(dtype=self._torch.float32)

    # Before backward ------------------------------------------------------------------------------------------------

    def before_backward(self, roots: Any) -> None:
        """Look at what backward begins from (the loss); where it is bad, at the outputs of blocks before it."""
        new, self._judged = self._seen[self._judged :], len(self._seen)
        if self._torch is None or not self._due:
            return
        if all(self._is_good(root) for root in roots):
            self._learn(new)
            return
        step = self._probe.current()
        bad = [one for one in self._seen if self._was_bad(one)]
        step.nonfinite += len(bad) + 1
        self._bad_step = step.number
        if bad:
            name = self._names[bad[0].index]
            inside = bad[0].kind == _FORWARD
            self._report(("forward", name if inside else "input of " + name, bad[0].index if inside else None),
                         step.number, len(bad) + 1, True)  # fmt: skip
        else:
            self._report(("forward", HEAD, None), step.number, 1, True)

    def _is_good(self, root: Any) -> bool:
        is_value = self._torch.is_tensor(root) and root.device.type == "cpu" and root.is_floating_point()
        return not is_value or root.numel() == 0 or math.isfinite(self._value(root))

    def _value(self, tensor: Any) -> float:
        return float(tensor.detach() if tensor.numel() == 1 and not hasattr(tensor, "to_local") else self._sum(tensor))

    def _was_bad(self, one: _Seen) -> bool:
        if one.total is not None:
            return not math.isfinite(float(one.total))
        tensor = one.tensor()
        return tensor is not None and not math.isfinite(self._value(tensor))

    def _learn(self, new: List[_Seen]) -> None:
        """Find out whose outputs are gone or changed when backward begins: those are summed at once from now on."""
        self._learnt += 1
        for one in new:
            if one.total is None and one.tensor() is None:
                self._short_lived.add((one.kind, one.index))
        if self._learnt == _LEARNING:
            self._short_lived |= {(one.kind, one.index) for one in new if one.tensor() is None}

    # Before the update ----------------------------------------------------------------------------------------------

    def check(self, step: Step) -> None:
        """Look at the sums of one step; report where the first bad one came from."""
        self._read_late()
        sums, self._sums = self._sums, []
        self._seen, self._judged = [], 0
        self._due = (step.number + 1) % self._every == 0
        if not sums:
            return
        keys = [(kind, index) for kind, index, _ in sums]
        if sums[0][2].device.type != "cpu":
            self._defer(step.number, keys, self._torch.stack([one[2] for one in sums]))
            return
        norm = step.grad_norm
        if norm is None or hasattr(norm, "to_local") or not math.isfinite(float(norm)):
            self._add_first_block(keys, sums)
        finite = [math.isfinite(float(total)) for _, _, total in sums]
        self._judge(step, step.number, keys, None if all(finite) else finite, at_once=True)

    def _add_first_block(self, keys: List[Tuple[int, int]], sums: List[Tuple[int, int, Any]]) -> None:
        """Add the gradients of the first block's parameters: nothing before it would show its backward."""
        first = next((index for kind, index in reversed(keys) if kind == _BACKWARD), None)
        block = self._blocks[first]() if first is not None else None
        if block is None or first is None:
            return
        gradients = [one.grad for one in block.parameters() if one.grad is not None and one.grad.is_floating_point()]
        for gradient in gradients[:32]:
            keys.append((_BACKWARD, -1))
            sums.append((_BACKWARD, -1, self._sum(gradient)))

    def _judge(self, step: Optional[Step], number: int, keys: List[Tuple[int, int]], finite: Optional[List[bool]],
               at_once: bool) -> None:  # fmt: skip
        if finite is None:
            # While parameters stay contaminated every step is bad: only the first of a series is an event.
            self._reported = self._reported and self._bad_step == number
            return
        bad = finite.count(False)
        if step is not None:
            step.nonfinite += bad
        self._report(self._origin(keys, finite), number, bad, at_once)

    def _report(self, origin: Origin, number: int, bad: int, at_once: bool) -> None:
        if self._reported:
            return
        self._reported = True
        phase, module, index = origin
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
        if kind == _INPUT:
            return "forward", "input of " + self._names[index], None
        if kind == _FORWARD:
            return "forward", self._names[index], index
        seen = [at for (was, at), good in zip(keys[:position], finite) if was == _BACKWARD and good and at != index]
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

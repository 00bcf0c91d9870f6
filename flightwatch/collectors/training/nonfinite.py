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
_reference = weakref.ref


#: One output of a block (or input of the first): kind, block, its sum or None, a weak reference to it and its version.
Seen = Tuple[int, int, Any, Any, int]


def _tensor(one: Seen) -> Any:
    """Return the values as they were, None when they are gone or were changed."""
    tensor = one[3]()
    return tensor if tensor is not None and tensor._version == one[4] else None


class NonFinite:
    """What is remembered of a step, and the checks before backward and before the update.

    Attributes
    ----------
    due: the running step is checked.
    seen, sums: outputs in their order, and gradients (kind, block, sum) in theirs, since the last update.
    plain: blocks whose outputs were learnt to live until backward: for those a weak reference is all that is kept.
    """

    def __init__(self, probe: Probe, every: int = 1) -> None:
        self._probe = probe
        self._every = max(1, every)
        self._torch: Any = None
        self._tensor: Any = None
        self._float32: Any = None
        self._names: List[str] = []
        self._blocks: List[Any] = []
        self.seen: List[Seen] = []
        self.sums: List[Tuple[int, int, Any]] = []
        self.plain: Set[int] = set()
        self.due = True
        self._judged = 0
        self._short_lived: Set[Tuple[int, int]] = set()
        self._learnt = 0
        self._bad_step = -1
        self._reported = False
        self._late: List[Tuple[int, List[Tuple[int, int]], Any, Any]] = []

    def watch(self, torch: Any, blocks: List[Tuple[str, Any]]) -> None:
        """Take the blocks of one more root; their numbers go on from those before."""
        self._torch, self._tensor, self._float32 = torch, torch.Tensor, torch.float32
        self._names += [name for name, _ in blocks]
        self._blocks += [weakref.ref(block) for _, block in blocks]
        self._learn_anew()

    def _learn_anew(self) -> None:
        self._learnt = 0
        self.plain = set()

    def input(self, index: int, inputs: Any) -> None:
        """Look at the input of a root's first block."""
        tensor = inputs[0] if isinstance(inputs, (tuple, list)) and inputs else inputs
        if self.due and self._probe.phase == FORWARD:
            self._remember(_INPUT, index, tensor)

    def output(self, index: int, tensor: Any) -> None:
        """Look at the output of a block, in a forward that trains."""
        # The one line that runs in every block of every step.
        if index in self.plain and len(self.seen) < _MOST_SUMS:
            self.seen.append((_FORWARD, index, None, _reference(tensor), tensor._version))
        else:
            self._remember(_FORWARD, index, tensor)

    def gradient(self, index: int, gradient: Any) -> None:
        """Look at the gradient with respect to the output of a block."""
        if gradient is None or len(self.sums) >= _MOST_SUMS:
            return
        if type(gradient) is self._tensor and gradient.dtype is self._float32 and not gradient.requires_grad:
            self.sums.append((_BACKWARD, index, gradient.sum()))
        else:
            self.sums.append((_BACKWARD, index, self._sum(gradient)))

    def _remember(self, kind: int, index: int, tensor: Any) -> None:
        if not (self._torch.is_tensor(tensor) and tensor.is_floating_point() and tensor.numel() > 0):
            return
        if len(self.seen) + len(self.sums) >= _MOST_SUMS:
            return
        if self._learnt >= _LEARNING and (kind, index) not in self._short_lived:
            self.seen.append((kind, index, None, _reference(tensor), tensor._version))
        elif tensor.device.type != "cpu":
            self._learn_anew()
            self.sums.append((kind, index, self._sum(tensor)))
        else:
            self.seen.append((kind, index, self._sum(tensor), _reference(tensor), tensor._version))

    def _sum(self, tensor: Any) -> Any:
        local = tensor.detach()
        if hasattr(local, "to_local"):
            local = local.to_local()
        return local.sum() if local.dtype is self._torch.float32 else local.sum(dtype=self._torch.float32)

    # Before backward ------------------------------------------------------------------------------------------------

    def before_backward(self, roots: Any) -> None:
        """Look at what backward begins from (the loss); where it is bad, at the outputs of blocks before it."""
        if self._torch is None or not self.due:
            return
        new, self._judged = self.seen[self._judged :], len(self.seen)
        if all(self._is_good(root) for root in roots):
            self._learn(new)
            return
        step = self._probe.current()
        bad = [one for one in self.seen if self._was_bad(one)]
        step.nonfinite += len(bad) + 1
        self._bad_step = step.number
        if bad:
            kind, index = bad[0][:2]
            name, inside = self._names[index], kind == _FORWARD
            self._report(("forward", name if inside else "input of " + name, index if inside else None),
                         step.number, len(bad) + 1, True)  # fmt: skip
        else:
            self._report(("forward", HEAD, None), step.number, 1, True)

    def _is_good(self, root: Any) -> bool:
        if type(root) is self._torch.Tensor and root.is_cpu and root.numel() == 1:
            return math.isfinite(root.item())
        is_value = self._torch.is_tensor(root) and root.device.type == "cpu" and root.is_floating_point()
        return not is_value or root.numel() == 0 or math.isfinite(self._value(root))

    def _value(self, tensor: Any) -> float:
        return float(tensor.detach() if tensor.numel() == 1 and not hasattr(tensor, "to_local") else self._sum(tensor))

    def _was_bad(self, one: Seen) -> bool:
        if one[2] is not None:
            return not math.isfinite(float(one[2]))
        tensor = _tensor(one)
        return tensor is not None and not math.isfinite(self._value(tensor))

    def _learn(self, new: List[Seen]) -> None:
        """Find out whose outputs are gone or changed when backward begins: those are summed at once from now on."""
        self._learnt += 1
        gone = []
        for one in new:
            tensor = one[3]()
            if tensor is None or tensor._version != one[4]:
                gone.append(one)
        short_lived = {one[:2] for one in gone if one[2] is None or self._learnt == _LEARNING}
        if self._learnt == _LEARNING:
            self.plain = {index for kind, index, *_ in new if kind == _FORWARD}
        if short_lived or self._learnt == _LEARNING:
            self._short_lived |= short_lived
            self.plain -= {index for kind, index in self._short_lived if kind == _FORWARD}

    # Before the update ----------------------------------------------------------------------------------------------

    def check(self, step: Step) -> None:
        """Look at the sums of one step; report where the first bad one came from."""
        self._read_late()
        sums, self.sums = self.sums, []
        self.seen, self._judged = [], 0
        self.due = (step.number + 1) % self._every == 0
        if not sums:
            return
        if not sums[0][2].is_cpu:
            self._defer(step.number, _keys(sums), self._torch.stack([one[2] for one in sums]))
            return
        norm = step.grad_norm
        if norm is None or hasattr(norm, "to_local") or not math.isfinite(float(norm)):
            self._add_first_block(sums)
        totals = [float(one[2]) for one in sums]
        # A sum of doubles each below 3e38 is finite; with one that is not, so is it.
        if math.isfinite(sum(totals)):
            self._judge(step, step.number, [], None, at_once=True)
        else:
            self._judge(step, step.number, _keys(sums), [math.isfinite(total) for total in totals], at_once=True)

    def _add_first_block(self, sums: List[Tuple[int, int, Any]]) -> None:
        """Add the gradients of the first block's parameters: nothing before it would show its backward."""
        first = next((index for kind, index, _ in reversed(sums) if kind == _BACKWARD), None)
        block = self._blocks[first]() if first is not None else None
        if block is None or first is None:
            return
        gradients = [one.grad for one in block.parameters() if one.grad is not None and one.grad.is_floating_point()]
        for gradient in gradients[:32]:
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


def _keys(sums: List[Tuple[int, int, Any]]) -> List[Tuple[int, int]]:
    return [(kind, index) for kind, index, _ in sums]

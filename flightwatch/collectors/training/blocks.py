"""Times of a model's repeated blocks, forward and backward, and the values that the non-finite check looks at.

Forward is the time between a block's own hooks. Backward of a block begins when the gradient reaches its output
and ends when the next gradient reaches an output, or with the backward itself; in a model whose blocks do not
follow one another these times blur. Communication inside a block that the host sees is not part of its compute.
On asynchronous devices the same places are marked with events on sampled steps (written, **not run on one**).
"""

from collections import OrderedDict
from typing import Any, Callable, List, Optional, Tuple

from flightwatch.collectors.training.device_time import DeviceTimer
from flightwatch.collectors.training.nonfinite import NonFinite
from flightwatch.collectors.training.probe import FORWARD, Probe, now_ns
from flightwatch.core.vocabulary import OpKind, OpLevel

#: Key of our hook among those of a tensor; torch counts its own from 0.
_OURS = -1
_LEVEL, _KIND = OpLevel.BLOCK.value, OpKind.COMPUTE.value


class Blocks:
    """Hooks on the blocks of all roots.

    After the arithmetic of a block the interpreter's code is in no cache, so that every line of a hook costs ten
    times what it costs alone: between sampled steps a hook does next to nothing.

    Parameters
    ----------
    nonfinite: None when values are not checked.
    timer: returns the timer of an asynchronous device, None where the host's clock tells.
    """

    def __init__(
        self, probe: Probe, nonfinite: Optional[NonFinite], timer: Callable[[], Optional[DeviceTimer]]
    ) -> None:
        self._probe = probe
        self._nonfinite = nonfinite
        self._timer = timer
        self._begun: List[Tuple[int, int, int]] = []
        self._open: Optional[Tuple[int, int, int]] = None
        self._names: List[Tuple[int, int]] = []
        self._tensor: Any = None
        self._plain_hooks = False

    def watch(self, torch: Any, blocks: List[Tuple[str, Any]], compiling: Callable[[], bool]) -> List[Any]:
        """Register hooks on the blocks of one root; return their handles."""
        handles: List[Any] = []
        probe = self._probe
        self._tensor = torch.Tensor
        self._plain_hooks = _has_plain_hooks(torch)
        first = len(self._names)
        if self._nonfinite is not None:
            self._nonfinite.watch(torch, blocks)
        for index, (name, block) in enumerate(blocks, first):
            self._names.append((probe.detail.name(_LEVEL, _KIND, name + " forward"),
                                probe.detail.name(_LEVEL, _KIND, name + " backward")))  # fmt: skip
            handles.append(block.register_forward_pre_hook(self._pre_hook(index, index == first, compiling)))
            handles.append(block.register_forward_hook(self._hook(index, compiling)))
        probe.blocks = len(self._names)
        return handles

    def _pre_hook(self, index: int, is_first: bool, compiling: Callable[[], bool]) -> Callable[..., None]:
        probe, nonfinite = self._probe, self._nonfinite

        def begins(inputs: Any) -> None:
            if is_first and nonfinite is not None:
                nonfinite.input(index, inputs)
            if probe.blocks_live and probe.phase == FORWARD:
                self._begins(index)

        guarded = probe.guard(begins)

        def hook(_module: Any, inputs: Any) -> None:
            if (is_first or probe.blocks_live) and not compiling():
                guarded(inputs)

        return hook

    def _hook(self, index: int, compiling: Callable[[], bool]) -> Callable[..., None]:
        probe, nonfinite = self._probe, self._nonfinite
        # Made once: making a hook costs more than calling it.
        on_gradient = self._gradient_hook(index)
        # As `Tensor.register_hook` does it, without the handle that costs three times the rest (decision 0108).
        hooks: Any = OrderedDict({_OURS: on_gradient})

        def on_gradients(gradients: Any) -> None:
            on_gradient(gradients[0] if gradients else None)

        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            checked = nonfinite is not None and nonfinite.due
            if probe.off or compiling() or not (probe.blocks_live or checked):
                return
            started_ns = now_ns()
            try:
                if probe.phase == FORWARD:  # Else evaluation, or activation checkpointing that runs forward again.
                    if probe.blocks_live:
                        self._ends(index, started_ns)
                    tensor = output[0] if isinstance(output, (tuple, list)) and output else output
                    if nonfinite is not None and checked:
                        nonfinite.output(index, tensor)
                    grad_fn = tensor.grad_fn
                    if grad_fn is not None:
                        if self._plain_hooks and type(tensor) is self._tensor and tensor._backward_hooks is None:
                            tensor._backward_hooks = hooks.copy()
                            grad_fn._register_hook_dict(tensor)
                        else:
                            grad_fn.register_prehook(on_gradients)
            except Exception as error:  # A hook's failure is ours, never the training's.
                probe.failed(error)
            probe.self_ns += now_ns() - started_ns

        return hook

    def _gradient_hook(self, index: int) -> Callable[[Any], None]:
        probe, nonfinite = self._probe, self._nonfinite

        def hook(gradient: Any) -> None:
            if probe.off:
                return
            started_ns = now_ns()
            try:
                if probe.blocks_live:
                    self._gradient(index, started_ns)
                if nonfinite is not None and nonfinite.due:
                    nonfinite.gradient(index, gradient)
            except Exception as error:  # A hook's failure is ours, never the training's.
                probe.failed(error)
            probe.self_ns += now_ns() - started_ns

        # Said of hooks that need not be kept with a tensor: saving one would warn of ours.
        hook.__torch_unserializable__ = True  # type: ignore[attr-defined]
        return hook

    def _begins(self, index: int) -> None:
        timer = self._timer()
        if timer is not None:
            timer.begin(f"{index} forward")
        elif len(self._begun) < 64:
            self._begun.append((index, now_ns(), self._probe.current().all_blocked_ns()))

    def _ends(self, index: int, ended_ns: int) -> None:
        timer = self._timer()
        if timer is not None:
            timer.end(f"{index} forward")
        step = self._probe.current()
        while self._begun:
            # One that was left by an exception has no end: it is passed over.
            begun, started_ns, blocked_ns = self._begun.pop()
            if begun == index:
                span_ns = ended_ns - started_ns
                compute_ns = max(0, span_ns - (step.all_blocked_ns() - blocked_ns))
                step.note(self._names[index][0], started_ns, compute_ns, 0, -1, span_ns)
                break

    def _gradient(self, index: int, at_ns: int) -> None:
        timer = self._timer()
        if timer is None:
            self._backward_ends(at_ns)
            self._open = (index, at_ns, self._probe.current().all_blocked_ns())
            return
        self._device_backward_ends(timer)
        timer.begin(f"{index} backward")
        self._open = (index, 0, 0)

    def backward_ends(self) -> None:
        """End the block whose backward ran last. Called after each backward."""
        if not self._probe.blocks_live:
            return
        timer = self._timer()
        if timer is None:
            self._backward_ends(now_ns())
        else:
            self._device_backward_ends(timer)
        self._open = None
        self._begun.clear()

    def _backward_ends(self, at_ns: int) -> None:
        if self._open is None:
            return
        index, started_ns, blocked_ns = self._open
        step = self._probe.current()
        span_ns = at_ns - started_ns
        compute_ns = max(0, span_ns - (step.all_blocked_ns() - blocked_ns))
        step.note(self._names[index][1], started_ns, compute_ns, 0, -1, span_ns)

    def _device_backward_ends(self, timer: DeviceTimer) -> None:
        if self._open is not None:
            timer.end(f"{self._open[0]} backward")

    def device_times(self, step: Any, spans_us: Any) -> None:
        """Note what events told of the blocks of a step: spans, of which the compute is not known."""
        for name, span_us in spans_us.items():
            text, _, direction = name.partition(" ")
            if text.isdigit() and int(text) < len(self._names):
                index = self._names[int(text)][direction == "backward"]
                step.note(index, step.start_ns, -1, 0, -1, int(span_us * 1000))


def _has_plain_hooks(torch: Any) -> bool:
    """Say whether this torch registers hooks of tensors as the one does that this was written for; else slowly."""
    try:
        trial = torch.ones(1, requires_grad=True) * 2
        seen: List[float] = []
        trial._backward_hooks = OrderedDict({_OURS: lambda gradient: seen.append(float(gradient))})
        trial.grad_fn._register_hook_dict(trial)
        # The engine's own function: `backward` is the job's to call, and is watched.
        torch.autograd.grad(trial, trial.grad_fn.next_functions[0][0].variable, torch.full((1,), 3.0))
        return seen == [3.0]
    except (AttributeError, TypeError, RuntimeError):
        return False

"""What the probe puts around torch's functions: optimizers, backward, data loader, loss scaling, rendezvous.

Every replacement calls the original with the same arguments, returns its result and raises what it raises.
Features that this torch does not have are left out and named in `missing`.
"""

import functools
import time
from typing import Any, Callable, List, Optional

from flightwatch.collectors.training.probe import BACKWARD, OUTSIDE, Probe, now_ns
from flightwatch.core.vocabulary import RunPhase


def install(probe: Probe) -> List[str]:
    """Install all hooks into the imported torch; return what this torch has no place for."""
    import torch

    missing: List[str] = []
    for name, part in (
        ("optimizer hooks", _optimizers),
        ("backward", _backward),
        ("clip_grad_norm_", _clip),
        ("data loader", _loader),
        ("loss scaling", _scaler),
        ("rendezvous", _rendezvous),
    ):
        try:
            part(probe, torch)
        except (ImportError, AttributeError, TypeError) as error:
            missing.append(name + ": " + repr(error))
    return missing


def around(
    probe: Probe,
    owner: Any,
    name: str,
    before: Callable[..., Any],
    after: Callable[[Any, int, int, Any], None],
) -> None:
    """Replace `owner.name` by a function that calls `before(*args)`, the original, `after(token, start, end, result)`.

    An exception of `before` or `after` is counted and goes no further; one of the original passes, after `after`
    was called with the result None.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if probe.off:
            return original(*args, **kwargs)
        token = result = None
        entered_ns = now_ns()
        try:
            token = before(*args, **kwargs)
        except Exception as error:  # Ours, not the training's.
            probe.failed(error)
        started_ns = now_ns()
        try:
            result = original(*args, **kwargs)
            return result
        finally:
            ended_ns = now_ns()
            try:
                after(token, started_ns, ended_ns, result)
            except Exception as error:  # Ours, not the training's.
                probe.failed(error)
            probe.self_ns += started_ns - entered_ns + now_ns() - ended_ns

    setattr(owner, name, replaced)


def _optimizers(probe: Probe, torch: Any) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    started = {}

    def begins(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        probe.optimizer_begins(optimizer)
        for check in before_update:
            check(probe.current())
        started[id(optimizer)] = now_ns()

    def ends(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        began_ns = started.pop(id(optimizer), None)
        if began_ns is not None:
            probe.optimizer_ends(optimizer, now_ns() - began_ns)

    register_optimizer_step_pre_hook(probe.guard(begins))
    register_optimizer_step_post_hook(probe.guard(ends))


#: Called with the step before an optimizer changes parameters (non-finite checks).
before_update: List[Callable[[Any], None]] = []
#: Called before and after each backward.
before_backward: List[Callable[[], None]] = []
after_backward: List[Callable[[], None]] = []
#: Called with the tensors that backward begins from.
on_roots: List[Callable[[Any], None]] = []


def _backward(probe: Probe, torch: Any) -> None:
    def before(tensors: Any = None, *_args: Any, **_kwargs: Any) -> int:
        step = probe.activity()
        for call in before_backward:
            call()
        for look in on_roots:
            look(tensors if isinstance(tensors, (list, tuple)) else (tensors,))
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if getattr(loss, "numel", None) is not None and loss.numel() == 1 and len(step.losses) < 1024:
            step.losses.append(loss.detach())
        return probe.enter(BACKWARD)

    def after(token: Optional[int], started_ns: int, ended_ns: int, _result: Any) -> None:
        step = probe.current()
        step.backward_ns += ended_ns - started_ns
        step.backwards += 1
        probe.phase = token if token is not None else OUTSIDE
        for call in after_backward:
            call()

    around(probe, torch.autograd, "backward", before, after)


def _clip(probe: Probe, torch: Any) -> None:
    def after(_token: Any, _started_ns: int, _ended_ns: int, result: Any) -> None:
        if result is not None:
            probe.current().grad_norm = result

    from torch.nn.utils import clip_grad

    around(probe, clip_grad, "clip_grad_norm_", _nothing, after)
    torch.nn.utils.clip_grad_norm_ = clip_grad.clip_grad_norm_


def _loader(probe: Probe, torch: Any) -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def before(*_args: Any, **_kwargs: Any) -> None:
        if probe.phase == OUTSIDE:
            probe.activity()

    def after(_token: Any, started_ns: int, ended_ns: int, _result: Any) -> None:
        step = probe.current()
        probe.loader_seen = True
        step.data_ns += ended_ns - started_ns
        for call in data_came:
            call(started_ns, ended_ns)

    around(probe, _BaseDataLoaderIter, "__next__", before, after)


#: Called with start and end of each wait for the data loader.
data_came: List[Callable[[int, int], None]] = []


def _scaler(probe: Probe, torch: Any) -> None:
    from torch.amp.grad_scaler import GradScaler

    def before(scaler: Any, *_args: Any, **_kwargs: Any) -> Any:
        return scaler

    def after(scaler: Any, _started_ns: int, _ended_ns: int, _result: Any) -> None:
        scale = getattr(scaler, "_scale", None)
        step = probe.current()
        if scale is not None and scale.device.type == "cpu":
            step.scale = float(scale)
        probe.skipped()

    around(probe, GradScaler, "update", before, after)


def _rendezvous(probe: Probe, torch: Any) -> None:
    import torch.distributed as dist

    def after(_token: Any, started_ns: int, ended_ns: int, _result: Any) -> None:
        now_ms = time.time_ns() // 1_000_000
        probe.phases.span(RunPhase.RENDEZVOUS, now_ms - (ended_ns - started_ns) // 1_000_000, now_ms)

    if dist.is_available():
        around(probe, dist, "init_process_group", _nothing, after)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None

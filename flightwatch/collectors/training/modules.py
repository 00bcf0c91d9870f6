"""The model's forward: which modules are the roots, and hooks on them and on their repeated blocks.

Modules are noted when they are made (weakly), because global module hooks would run inside torch.compile's
traces and make it warn. At the first backward the modules that nobody contains and that train are the roots.
A compiled model has hooks on its root alone: hooks further in break the graph.
"""

import gc
import weakref
from typing import Any, Callable, Dict, List, Tuple

from flightwatch.collectors.training.hooks import around, before_backward, data_came
from flightwatch.collectors.training.probe import BACKWARD, FORWARD, OUTSIDE, Probe, now_ns
from flightwatch.core.vocabulary import RunPhase

_MOST_NOTED = 200_000
_MOST_ROOTS = 8
#: Steps between looks for new models after the first few.
RARELY = 100
_MOST_BLOCKS = 256


class Modules:
    """Finds roots and times them.

    Parameters
    ----------
    on_root: called with each new root module.
    on_blocks: called with root, names and modules of its repeated blocks; not for compiled models.

    Attributes
    ----------
    handles: of the hooks of each root, by identity; whoever hooks parts of a root adds his.
    """

    def __init__(self, probe: Probe, on_root: Callable[[Any], None],
                 on_blocks: Callable[[Any, List[Tuple[str, Any]]], None]) -> None:  # fmt: skip
        self._probe = probe
        self._on_root = on_root
        self._on_blocks = on_blocks
        self._noted: List[Any] = []
        self._looked_at = self._looks = self._not_before = 0
        self._roots: Dict[int, Any] = {}
        self.handles: Dict[int, List[Any]] = {}
        self._depth = 0
        self._started_ns = 0
        self._evaluating_since_ns = 0
        self._evaluated_ns = 0
        self._data: List[Tuple[int, int]] = []
        self.compiling: Callable[[], bool] = _never
        self.forward_done: List[Callable[[Any], None]] = []
        self.forward_begins: List[Callable[[Any], None]] = []

    def install(self, torch: Any, late: bool) -> None:
        """Note modules from now on; `late`: models may exist already, so look for them once."""
        self._torch = torch
        known = getattr(getattr(torch, "compiler", None), "is_compiling", None)
        if known is not None:
            self.compiling = known
        elif hasattr(torch, "compile"):
            # torch before 2.3: hooks cannot tell that they are being traced, so they go before anything is.
            around(self._probe, torch, "compile", self._unhook, _nothing)
        if late:
            self._noted.extend(weakref.ref(one) for one in gc.get_objects() if issubclass(type(one), torch.nn.Module))

        def note(module: Any, *_args: Any, **_kwargs: Any) -> None:
            if len(self._noted) < _MOST_NOTED:
                self._noted.append(weakref.ref(module))

        around(self._probe, torch.nn.Module, "__init__", note, _nothing)
        before_backward.append(self._find)
        data_came.append(self._data_came)

    def _find(self) -> None:
        """Look for new roots; costs nothing while no module was made since.

        A job that makes modules in every step (a loss, say) is looked through every RARELY steps.
        """
        number = self._probe.current().number
        if len(self._noted) == self._looked_at or len(self._roots) >= _MOST_ROOTS or number < self._not_before:
            return
        self._looks += 1
        self._not_before = number + (1 if self._looks < 8 else RARELY)
        self._noted = [one for one in self._noted if one() is not None]
        alive = [module for module in (one() for one in self._noted) if module is not None]
        self._looked_at = len(self._noted)
        contained = {id(child) for module in alive for child in module._modules.values() if child is not None}
        for module in alive:
            if len(self._roots) >= _MOST_ROOTS:
                return
            if id(module) in contained or id(module) in self._roots or not module.training:
                continue
            if any(parameter.requires_grad for parameter in module.parameters()):
                self._hook(module)

    def _hook(self, module: Any) -> None:
        self._roots[id(module)] = weakref.ref(module)
        compiled = getattr(module, "_compiled_call_impl", None)
        if compiled is not None:
            self._wrap_compiled(module, compiled)
        else:
            self.handles[id(module)] = [
                module.register_forward_pre_hook(self._outside_of_traces(self._begins)),
                module.register_forward_hook(self._outside_of_traces(self._ends)),
            ]
        self._on_root(module)
        if _is_compiled(module):
            self._probe.compiled = True
        else:
            blocks = repeated_blocks(self._torch, module)
            if blocks:
                self._on_blocks(module, blocks)

    def _unhook(self, model: Any = None, *_args: Any, **_kwargs: Any) -> None:
        """Remove the hooks in a model that is about to be compiled; its compiled form is found as a new root."""
        inside = {id(module) for module in model.modules()} if hasattr(model, "modules") else set()
        for identity, reference in list(self._roots.items()):
            if reference() is not None and identity in inside:
                for handle in self.handles.pop(identity, []):
                    handle.remove()

    def _outside_of_traces(self, function: Callable[..., None]) -> Callable[..., None]:
        hook, compiling = self._probe.guard(function), self.compiling

        def unless_compiling(*args: Any) -> None:
            if not compiling():
                hook(*args)

        return unless_compiling

    def _wrap_compiled(self, module: Any, compiled: Callable[..., Any]) -> None:
        """`module.compile()`: hooks would be compiled too, so the compiled call itself is timed."""
        begins, ends = self._probe.guard(self._begins), self._probe.guard(self._ends)
        reference = weakref.ref(module)

        def call(*args: Any, **kwargs: Any) -> Any:
            begins(reference(), args)
            try:
                return compiled(*args, **kwargs)
            finally:
                ends(reference(), args, None)

        module._compiled_call_impl = call

    def _begins(self, module: Any, _inputs: Any) -> None:
        probe = self._probe
        if probe.phase == BACKWARD:
            return
        if not (module.training and self._torch.is_grad_enabled()):
            self._evaluates()
            return
        self._trains_again()
        probe.activity()
        if self._depth == 0 or probe.phase != FORWARD:
            self._depth = 0
            self._started_ns = now_ns()
            probe.phase = FORWARD
            for call in self.forward_begins:
                call(module)
        self._depth += 1

    def _ends(self, module: Any, _inputs: Any, _output: Any) -> None:
        probe = self._probe
        if probe.phase == OUTSIDE and self._evaluating_since_ns:
            self._evaluated_ns = now_ns()
        if probe.phase != FORWARD or self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0:
            step = probe.current()
            step.forward_ns += now_ns() - self._started_ns
            step.forwards += 1
            probe.phase = OUTSIDE
            for call in self.forward_done:
                call(module)

    def _evaluates(self) -> None:
        if not self._evaluating_since_ns:
            # The wait for the first batch of the evaluation belongs to it.
            started = [begin for begin, _ in self._data[-1:]]
            self._probe.activity()
            self._evaluating_since_ns = started[0] if started else now_ns()
            self._evaluated_ns = now_ns()
            self._probe.phases.begins(RunPhase.EVALUATE, self._evaluating_since_ns)

    def _trains_again(self) -> None:
        """Take the evaluation out of the step: it ended where the last wait for training data began."""
        since_ns = self._evaluating_since_ns
        if not since_ns:
            self._data.clear()
            return
        self._evaluating_since_ns = 0
        after = [begin for begin, _ in self._data if begin >= self._evaluated_ns]
        until_ns = after[0] if after else self._evaluated_ns
        step = self._probe.current()
        since_ns = max(since_ns, step.start_ns)
        step.excluded_ns += max(0, until_ns - since_ns)
        inside = sum(end - begin for begin, end in self._data if since_ns <= begin < until_ns)
        step.data_ns = max(0, step.data_ns - inside)
        self._data.clear()
        self._probe.phases.span_ns(RunPhase.EVALUATE, since_ns, until_ns)

    def _data_came(self, started_ns: int, ended_ns: int) -> None:
        if len(self._data) < 4096:
            self._data.append((started_ns, ended_ns))


def repeated_blocks(torch: Any, root: Any) -> List[Tuple[str, Any]]:
    """Return the parts of a model that are looked at, in the model's order: members of its outermost lists of
    layers and what stands before the last of them (embedding); without such lists its children.

    What stands behind (head) is left out: its output is the largest of all, and the loss tells as much.
    """
    lists: List[str] = []
    for name, module in root.named_modules():
        if any(name.startswith(one + ".") or not one for one in lists):
            continue
        is_list = isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and len(module) > 1
        if is_list and all(_has_parameters(one) for one in module):
            lists.append(name)
    above = {name.rpartition(".")[0] for name in lists if name}
    for name in list(above):
        while name:
            name = name.rpartition(".")[0]
            above.add(name)
    blocks: List[Tuple[str, Any]] = []
    last = 0
    for name, module in root.named_modules():
        parent = name.rpartition(".")[0]
        inside = parent in lists or (parent in above and name not in above and name not in lists)
        if name and inside and _has_parameters(module):
            blocks.append((_plain(name), module))
            if parent in lists:
                last = len(blocks)
    if not lists:
        inner = getattr(root, "module", root)
        blocks = [(name, child) for name, child in inner.named_children() if _has_parameters(child)]
    return blocks[: min(last or _MOST_BLOCKS, _MOST_BLOCKS)]


def _nothing(_token: Any, _started_ns: int, _ended_ns: int, _result: Any) -> None:
    return None


def _never() -> bool:
    return False


def _has_parameters(module: Any) -> bool:
    return next(module.parameters(), None) is not None


def _plain(name: str) -> str:
    """Return a name as the user wrote it: without the wrappers' parts."""
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "_fsdp_wrapped_module")).replace(
        "module.", "", 1 if name.startswith("module.") else 0
    )


def _is_compiled(root: Any) -> bool:
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in root.modules()
    )

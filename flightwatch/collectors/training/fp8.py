"""FP8 numerics per layer: the largest magnitude, the scale and the share that overflowed, as `training_scalars`.

Two sources: modules that keep Transformer Engine's state (`fp8_meta` with `scaling_fwd` and `scaling_bwd`, each
with `amax_history` and `scale`), and `attach(fp8=...)`. Names are `fp8.amax.<layer>`, `fp8.scale.<layer>` and
`fp8.overflow.<layer>`; a layer's tensors are told apart as `<layer>.forward.0` (input), `.forward.1` (weight),
`.backward.0`. Overflow is 1 where amax x scale exceeds the format's largest value, else 0; a library that counts
can give its own share. Tested with stand-ins for Transformer Engine; **not run on a device**.
"""

from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from flightwatch.collectors.training.probe import Probe
from flightwatch.collectors.training.step import Step

#: Values are told every so many steps.
EVERY = 20
MOST_TENSORS = 512
_QUANTITIES = ("amax", "scale", "overflow")
_LARGEST = {"forward": 448.0, "backward": 57344.0}
Given = Callable[[], Mapping[str, Mapping[str, float]]]


class Fp8:
    """Reads FP8 state at the end of a step.

    Attributes
    ----------
    given: from `attach(fp8=...)`: returns {layer: {"amax": ..., "scale": ..., "overflow": ...}}.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._layers: List[Tuple[str, Any]] = []
        self._late: List[Tuple[int, int, List[str], Any, Any]] = []
        self.given: Optional[Given] = None

    def root_found(self, torch: Any, root: Any) -> None:
        """Note the modules of a root that keep FP8 state."""
        self._torch = torch
        found = [(name, module) for name, module in root.named_modules() if hasattr(module, "fp8_meta")]
        self._layers += found[: MOST_TENSORS - len(self._layers)]

    def step_closed(self, step: Step) -> None:
        """Tell the values of every EVERY-th step. On an asynchronous device they are copied and told later."""
        self._read_late()
        if step.number % EVERY:
            return
        if self.given is not None:
            for layer, values in list(self.given().items())[:MOST_TENSORS]:
                for quantity in _QUANTITIES:
                    if quantity in values:
                        self._probe.scalar(step, f"fp8.{quantity}.{layer}", float(values[quantity]))
        tensors = list(self._tensors())[:MOST_TENSORS]
        if not tensors:
            return
        names = [name for name, _, _ in tensors]
        values = self._torch.stack([self._torch.stack([amax.float(), scale.float()]) for _, amax, scale in tensors])
        if values.device.type == "cpu":
            self._tell(step.number, step.start_ms, names, values)
        else:
            self._defer(step, names, values)

    def _tensors(self) -> Iterator[Tuple[str, Any, Any]]:
        """Yield name, newest amax and scale of each tensor of each layer."""
        for layer, module in self._layers:
            for direction, key in (("forward", "scaling_fwd"), ("backward", "scaling_bwd")):
                state = module.fp8_meta.get(key)
                history, scale = getattr(state, "amax_history", None), getattr(state, "scale", None)
                if history is None or scale is None or history.dim() != 2:
                    continue
                for place in range(min(history.shape[1], scale.numel())):
                    yield f"{layer}.{direction}.{place}", history[:, place].max(), scale.reshape(-1)[place]

    def _defer(self, step: Step, names: List[str], values: Any) -> None:
        copy = self._torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copy.copy_(values, non_blocking=True)
        event = self._torch.Event(device=values.device.type)
        event.record()
        if len(self._late) < 8:
            self._late.append((step.number, step.start_ms, names, copy, event))

    def _read_late(self) -> None:
        while self._late and self._late[0][4].query():
            number, start_ms, names, copy, _ = self._late.pop(0)
            self._tell(number, start_ms, names, copy)

    def _tell(self, number: int, start_ms: int, names: List[str], values: Any) -> None:
        step = Step(number, 0, start_ms)
        for name, (amax, scale) in zip(names, values.tolist()):
            largest = _LARGEST[name.rsplit(".", 2)[1]]
            told: Dict[str, float] = {"amax": amax, "scale": scale, "overflow": float(amax * scale > largest)}
            for quantity, value in told.items():
                self._probe.scalar(step, f"fp8.{quantity}.{name}", value)

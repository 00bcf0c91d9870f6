"""The probe's centre: the current step, when it ends, what is sent, and when the probe gives up.

Hooks (hooks.py, modules.py, communication.py) call the methods below on the training thread. Each costs a few
hundred nanoseconds and only counts; rows are made when a step ends, encoded and sent by `wire.Wire`'s thread.
"""

import os
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Set

from flightwatch.collectors.training.asked import Asked
from flightwatch.collectors.training.detail import LEAST_EVERY, Detail, block_every
from flightwatch.collectors.training.identity import Identity
from flightwatch.collectors.training.phases import Phases
from flightwatch.collectors.training.step import BACKWARD, FORWARD, OPTIMIZER, OUTSIDE, Step
from flightwatch.collectors.training.summary import Summary
from flightwatch.collectors.training.wire import Wire, process_header

now_ns = time.perf_counter_ns
#: After so many errors in its hooks the probe takes itself out.
MOST_ERRORS = 20
#: What changes rarely (placement, groups) is told again this often: agents restart.
REPEAT_SECONDS = 60.0
FIGURES_SECONDS = 10.0
#: Ops of steps that wait to be sent; beyond, steps are sent without them.
MOST_OPS_WAITING = 20_000
#: Steps between looks at how often blocks' times are sent.
_RECKONED_EVERY = 64
#: Blocks are timed in every step while all hooks together take less of the time than this.
CHEAP, DEAR = 0.0005, 0.001


class Probe:
    """State of one process's probe.

    Attributes
    ----------
    off: True once the probe has given up; every hook then does nothing.
    hidden_communication: set where the host cannot see communication, so that compute is not derived from it.
    compiled: set where a root is compiled, whose inside is not seen.
    asynchronous: set on devices that run beside the host, where host times of communication say nothing.
    blocks: how many repeated blocks are timed. every_given: send their times every so many steps (0: never),
        None: as a budget of bytes allows. blocks_live: blocks are timed in the running step.
    asked: times of blocks that the agent asks for.
    self_ns: time spent in hooks on the training thread.
    """

    def __init__(self, identify: Callable[[], Identity], socket_path: str) -> None:
        self.identity = identify()
        self._identify = identify
        self.off = False
        self.errors = 0
        self.last_error = ""
        self.self_ns = 0
        self.hidden_communication = self.asynchronous = self.compiled = False
        self.blocks = 0
        self.every_given: Optional[int] = None
        self.blocks_live = False
        self.reducer_runs = False
        self.loader_seen = False
        self.phase = OUTSIDE
        self.steps_done = 0
        self.step: Optional[Step] = None
        self.role: Dict[str, int] = {}
        self.work_of_step: Optional[Callable[[], Dict[str, float]]] = None
        self.axis_of_group: Dict[str, str] = {}
        self.detail = Detail(self.axis_of_group)
        self.repeated: List[Callable[[], List[Any]]] = [lambda: self.detail.names(time.time_ns() // 1_000_000)]
        self.on_close: List[Callable[[Step], None]] = []
        self.before_finish: List[Callable[[], None]] = []
        self.device_index: Optional[int] = None
        self.phases = Phases(self)
        self.summary = Summary()
        self.wire = Wire(socket_path, self._header, self._gather)
        self.asked = Asked(self, socket_path)
        self._previous: Optional[Step] = None
        self._block_every = LEAST_EVERY
        self._every_step = False
        self._reckoned = (now_ns(), 0)
        self._ops_waiting = 0
        self._explicit = False
        self._stepped: Set[int] = set()
        self._optimizers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._unused: Set[int] = set()
        self._ending = False
        self._next_number = 0
        self._repeat_at_s = self._figures_at_s = 0.0
        os.register_at_fork(after_in_child=self._forked)

    # Guarding -------------------------------------------------------------------------------------------------------

    def guard(self, function: Callable[..., Any]) -> Callable[..., None]:
        """Return a hook that calls `function`, lets nothing out of it, returns None and counts its time."""

        def hook(*args: Any, **kwargs: Any) -> None:
            if self.off:
                return
            started = now_ns()
            try:
                function(*args, **kwargs)
            except Exception as error:  # A hook's failure is ours, never the training's.
                self.failed(error)
            self.self_ns += now_ns() - started

        return hook

    def failed(self, error: BaseException) -> None:
        """Count an error; after MOST_ERRORS the probe is off."""
        self.errors += 1
        self.last_error = repr(error)[:300]
        if self.errors >= MOST_ERRORS and not self.off:
            self.off = True
            told = f"the probe switched itself off after {self.errors} errors: {self.last_error}"
            self._event("probe:off", "warning", told, {})
            self.wire.start()

    def _forked(self) -> None:
        """Begin anew in a forked child: most (loader workers) never make a step and so never send."""
        self.wire.forked()
        self.asked.renew()
        self.step = self._previous = None
        self.steps_done = self._next_number = 0
        self._ending = False
        self._ops_waiting = 0
        self.summary = Summary()
        self.phases = Phases(self)

    # Steps ----------------------------------------------------------------------------------------------------------

    def current(self) -> Step:
        """Return the running step; begins one when there is none."""
        step = self.step
        if step is None:
            step = self.step = Step(self._next_number, now_ns(), time.time_ns() // 1_000_000)
        return step

    def next_number(self) -> int:
        """Return the number of the step that runs or will begin next."""
        return self.step.number if self.step is not None else self._next_number

    def learn_identity(self) -> None:
        """Find the identity again: launchers that fork or spawn set ranks after torch is imported."""
        self.identity = self._identify()

    def activity(self) -> Step:
        """Note that training goes on: a step whose optimizers are through ends where the last of them ended."""
        if self._ending and not self._explicit:
            self._close()
        return self.current()

    def begin_explicit(self, number: Optional[int], tokens: Optional[float], work: Dict[str, float]) -> None:
        """Begin a step of `with flightwatch.step():`; from now on only those begin and end steps."""
        self._explicit = True
        self.step = Step(self._next_number if number is None else number, now_ns(), time.time_ns() // 1_000_000)
        self.step.tokens, self.step.work = tokens, dict(work)

    def end_explicit(self, loss: Any) -> None:
        """End the step begun last."""
        if self.step is not None:
            self.step.end_ns = now_ns()
            if loss is not None:
                self.step.losses = [loss]
            self._close()

    def optimizer_begins(self, optimizer: Any) -> None:
        """Note that an optimizer steps; one that steps twice ends the step before it."""
        if id(optimizer) in self._stepped and not self._explicit:
            self._unused |= set(self._optimizers) - self._stepped
            self._ending = True
            self._close()
        self._optimizers[id(optimizer)] = optimizer
        self._unused.discard(id(optimizer))
        self.current()
        self.phase = OPTIMIZER

    def optimizer_ends(self, optimizer: Any, took_ns: int) -> None:
        """Note that an optimizer has stepped; when all that usually do have, the step is over."""
        step = self.current()
        step.optimizer_ns += took_ns
        step.end_ns = now_ns()
        self.phase = OUTSIDE
        self._stepped.add(id(optimizer))
        self._ending = self._stepped >= set(self._optimizers) - self._unused

    def skipped(self) -> None:
        """Note the end of an iteration that a loss scaler made without an optimizer's step."""
        if self.step is not None and not self._explicit and not self._stepped and self.step.backwards:
            self.step.end_ns = now_ns()
            self._ending = True
            self.scalar(self.step, "skipped_iterations", 1.0)

    def _close(self) -> None:
        """End the step, hand over the one before it (late values have come by now), begin the next one."""
        step, self.step = self.step, None
        self._ending = False
        self._stepped.clear()
        if step is None:
            return
        self._next_number = step.number + 1
        for finish in self.on_close:
            finish(step)
        if self.work_of_step is not None:
            self._count_work(step)
        if self.steps_done == 0:
            self.learn_identity()
            self.phases.training_begins(step.start_ms)
        self.steps_done += 1
        if step.number % _RECKONED_EVERY == 0 and self.blocks:
            self._reckon(step)
        number = self._next_number
        self.blocks_live = self._every_step or self._is_sampled(number) or self.asked.covers(number)
        self._hand_over()
        self._previous = step
        self.wire.start()
        if not self._explicit:
            self.step = Step(self._next_number, step.end_ns, step.start_ms + (step.end_ns - step.start_ns) // 1_000_000)

    def _count_work(self, step: Step) -> None:
        counted = dict(self.work_of_step() or {}) if self.work_of_step is not None else {}
        tokens = counted.pop("tokens", None)
        step.tokens = float(tokens) if tokens is not None else step.tokens
        step.work = {str(name): float(value) for name, value in counted.items()}

    @property
    def previous(self) -> Optional[Step]:
        """The step that ended last and is not handed over yet."""
        return self._previous

    def _is_sampled(self, number: int) -> bool:
        every = self._block_every if self.every_given is None else self.every_given
        return every > 0 and number % every == 0

    def _reckon(self, step: Step) -> None:
        """Decide how often times of blocks are sent, and whether every step's are cheap enough for the ring."""
        took_ns = max(1, step.end_ns - self._reckoned[0])
        share = (self.self_ns - self._reckoned[1]) / took_ns
        self._reckoned = (step.end_ns, self.self_ns)
        self._block_every = block_every(self.identity.world, self.blocks, took_ns / 1000 / _RECKONED_EVERY)
        self._every_step = self.every_given != 0 and share < (DEAR if self._every_step else CHEAP)

    def _hand_over(self) -> None:
        """Queue the step before; its rows are made on the sending thread."""
        step, self._previous = self._previous, None
        if step is None:
            return
        if self._ops_waiting + len(step.ops) > MOST_OPS_WAITING:
            step.ops = []
        self._ops_waiting += len(step.ops)
        self.wire.put(lambda: self._rows(step))

    def _rows(self, step: Step) -> List[Any]:
        """Return what is sent of a step. Called on the sending thread, when nobody changes the step any more."""
        self._ops_waiting -= len(step.ops)
        try:
            step.losses = [_number(loss) for loss in step.losses]
            values = {"ts": step.start_ms, "step": step.number, "mode": "sync"}
            values.update(step.times_us(self.reducer_runs, self.hidden_communication, self.loader_seen))
            values.update(_known(
                tokens=step.tokens, loss=step.mean_loss(), grad_norm=_number(step.grad_norm), device=self.device_index,
                nonfinite_count=step.nonfinite, work=step.work or None, comm_by_axis_us=self._by_axis(step),
            ))  # fmt: skip
            if "comm_us" in values and step.blocked:
                values["groups"] = self._by_group(step)
            rows: List[Any] = [("rank_steps", values)]
            if step.scale is not None:
                rows.append(self._scalar(step, "loss_scale", step.scale))
            rows += self.summary.add(step, values, self.axis_of_group)
            asked = self.asked.covers(step.number)
            if asked or self._is_sampled(step.number):
                blocks = self.detail.block_rows(step)
                rows += blocks
            rows += self.detail.rows(step)
            if asked:
                self.asked.told(step.number, len(blocks))
            return rows
        except Exception as error:  # A step that cannot be told is ours to lose.
            self.failed(error)
            return []

    def _by_axis(self, step: Step) -> Optional[Dict[str, float]]:
        found: Dict[str, float] = {}
        for (_, group), blocked in step.blocked.items():
            axis = self.axis_of_group.get(group)
            if axis is not None:
                found[axis] = round(found.get(axis, 0.0) + blocked.ns / 1000, 1)
        return found or None

    def _by_group(self, step: Step) -> Dict[str, float]:
        found: Dict[str, float] = {}
        for (_, group), blocked in step.blocked.items():
            found[group] = round(found.get(group, 0.0) + blocked.ns / 1000, 1)
        if found.get("", 0.0) < 0.05 * sum(found.values()):
            found.pop("", None)  # Waits for calls that were not seen: too short to matter.
        return found

    # Rows besides steps ---------------------------------------------------------------------------------------------

    def _scalar(self, step: Step, name: str, value: float) -> Any:
        return "training_scalars", {"ts": step.start_ms, "step": step.number, "name": name, "value": value}

    def scalar(self, step: Step, name: str, value: float) -> None:
        """Send one named value of a step."""
        self.wire.put(self._scalar(step, name, value))

    def _event(self, code: str, severity: str, message: str, attrs: Dict[str, Any]) -> None:
        values = {"ts": time.time_ns() // 1_000_000, "code": code, "severity": severity, "message": message,
                  "attrs": {name: str(value) for name, value in attrs.items()}}  # fmt: skip
        self.wire.put(("events", values))

    event = _event

    def _header(self) -> Dict[str, Any]:
        return process_header(self.identity.job, self.identity.run, self.identity.rank)

    def _gather(self) -> None:
        """On the sending thread: repeat what a restarted agent would not know, and the probe's own figures."""
        now_s = time.monotonic()
        self.phases.tell_running()
        self.asked.look()
        if self.steps_done and now_s >= self._repeat_at_s:
            self._repeat_at_s = now_s + REPEAT_SECONDS
            for make in self.repeated:
                for row in make():
                    self.wire.put(row)
        if self.steps_done and now_s >= self._figures_at_s:
            self._figures_at_s = now_s + FIGURES_SECONDS
            figures = {
                "dropped_rows_total": self.wire.dropped, "errors_total": self.errors, "steps_total": self.steps_done,
                "failed_sends_total": self.wire.failed_sends, "hook_s_total": self.self_ns / 1e9,
                "sent_bytes_total": self.wire.sent_bytes, "off": int(self.off),
            }  # fmt: skip
            ts = time.time_ns() // 1_000_000
            self.wire.put(("listens", {"token": self.asked.token}))
            for name, value in figures.items():
                self.wire.put(("self_metrics", {"ts": ts, "name": name, "value": float(value)}))

    def finish(self) -> None:
        """At the end of the process: hand over what is left; waits at most 0.3 s."""
        if self.off or not self.steps_done:
            return
        try:
            if self._ending:
                self._close()
            for call in self.before_finish:
                call()
            self._hand_over()
            self.wire.put(self._rest)
            self.phases.ends()
            self.wire.put(("left", {"ts": time.time_ns() // 1_000_000}))
            self._figures_at_s = 0.0
        except Exception as error:  # The interpreter is ending: nothing here may change its exit code.
            self.failed(error)
        self.wire.stop(0.3)

    def _rest(self) -> List[Any]:
        self.asked.ends()
        return self.summary.rest(self.axis_of_group)

    def enter(self, phase: int) -> int:
        """Set the phase that communication is counted by; return the one before it."""
        before, self.phase = self.phase, phase
        return before


def _number(value: Any) -> Optional[float]:
    """Return a tensor or number on the host as float; None for what cannot be read without waiting."""
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return float(value)
    if getattr(value, "device", None) is not None and value.device.type != "cpu":
        return None
    if hasattr(value, "to_local"):
        if not all(placement.is_replicate() for placement in value.placements):
            return None
        value = value.to_local()
    return float(value.detach()) if value.numel() == 1 else None


def _known(**values: Any) -> Dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


__all__ = ["BACKWARD", "FORWARD", "OPTIMIZER", "OUTSIDE", "Probe", "now_ns"]

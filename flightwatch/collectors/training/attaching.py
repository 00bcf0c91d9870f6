"""`flightwatch.attach()` and `with flightwatch.step():`: the probe's only functions for users."""

import atexit
import contextlib
import os
import sys
from typing import Any, Callable, Dict, Iterator, Mapping, Optional

from flightwatch.collectors.training.detail import given_every
from flightwatch.collectors.training.identity import Identity, find_identity, role_of_text
from flightwatch.collectors.training.probe import Probe

DEFAULT_SOCKET = "/run/flightwatch/probe.sock"
_state: Dict[str, Any] = {}
#: Identity as given by arguments, the first word for each; no call renames a job that has made a step.
_names: Dict[str, Any] = {}


def attach(
    *,
    job: Optional[str] = None,
    run: Optional[str] = None,
    rank: Optional[int] = None,
    role: Optional[Mapping[str, int]] = None,
    work: Optional[Callable[[], Mapping[str, float]]] = None,
    socket: Optional[str] = None,
    check_every: Optional[int] = None,
    block_every: Optional[int] = None,
    fp8: Optional[Callable[[], Mapping[str, Mapping[str, float]]]] = None,
) -> None:
    """Attach the probe to this process, before or after the model is made. Never raises, and is idempotent:
    a second call adds `role`, `work` and `fp8` to the attached probe, and before the first step a name that it lacks.

    Parameters
    ----------
    job, run, rank: identity where no launcher tells it (Slurm, torchrun, Kubernetes operators do).
    role: coordinates on parallel axes, for example {"tp": 0, "dp": 3}.
    work: called once a step; returns counters of this rank's work in the step ("tokens" has a column of its own).
    socket: the agent's socket (default: FLIGHTWATCH_SOCKET, then /run/flightwatch/probe.sock).
    check_every: look for non-finite values every so many steps; 0: never (default: FLIGHTWATCH_CHECK_EVERY, then 1).
    block_every: send times of repeated blocks every so many steps; 0: never (default: FLIGHTWATCH_BLOCK_EVERY, then
        what a budget of 100 kB a second and job allows, at most every 16th step).
    fp8: called every 20 steps; returns {layer: {"amax": ..., "scale": ..., "overflow": ...}}.
    """
    try:
        probe = _state.get("probe")
        if probe is None or not probe.steps_done:
            given = {"job": job, "run": run, "rank": rank}
            _names.update({name: value for name, value in given.items() if value is not None and name not in _names})
        if probe is None:
            probe = Probe(lambda: _identity(**_names), socket or os.environ.get("FLIGHTWATCH_SOCKET") or DEFAULT_SOCKET)
            _state["probe"] = probe
            _state["given"] = role_of_text(os.environ.get("FLIGHTWATCH_ROLE", ""))
            _state["every"] = check_every if check_every is not None else _number("FLIGHTWATCH_CHECK_EVERY", 1)
            every = given_every(os.environ.get("FLIGHTWATCH_BLOCK_EVERY"))
            probe.every_given = block_every if block_every is not None else every
            atexit.register(probe.finish)
        _assemble(late=True)
        if role:
            _state["given"].update({str(axis): int(index) for axis, index in role.items()})
        if work is not None:
            probe.work_of_step = work
        if fp8 is not None:
            _state["fp8"] = fp8
        if "fp8" in _state and "assembly" in _state:
            _state["assembly"].fp8.given = _state["fp8"]
    except Exception as error:  # Whatever is wrong with the probe, training starts.
        _warn(error)


def attach_at_import() -> None:
    """Attach at the end of `import torch`: no model exists yet. May raise."""
    if "probe" in _state:
        _assemble(late=False)
        return
    _state["late"] = False
    attach()


def _assemble(late: bool) -> None:
    """Install the hooks once torch is there; before that there is nothing to hook."""
    if "torch" not in sys.modules or _state.get("assembled"):
        return
    _state["assembled"] = True
    from flightwatch.collectors.training.assembly import assemble

    late = _state.get("late", late)
    assembly = _state["assembly"] = assemble(_state["probe"], _state["given"], _state["every"], late=late)
    assembly.fp8.given = _state.get("fp8")


def _identity(job: Optional[str] = None, run: Optional[str] = None, rank: Optional[int] = None) -> Identity:
    """Return the identity; a process group that is initialised knows rank and world better than the environment."""
    found = find_identity(os.environ, job, run, rank)
    distributed = sys.modules.get("torch.distributed")
    if rank is None and distributed is not None and distributed.is_available() and distributed.is_initialized():
        found = found._replace(rank=distributed.get_rank(), world=distributed.get_world_size())
    return found


@contextlib.contextmanager
def step(
    number: Optional[int] = None,
    *,
    tokens: Optional[float] = None,
    work: Optional[Mapping[str, float]] = None,
    loss: Optional[Callable[[], float]] = None,
) -> Iterator[None]:
    """Mark one training step, for loops without a torch optimizer. Once used, only these marks make steps.

    Parameters
    ----------
    number: step number; counted from 0 when left out.
    tokens: tokens this rank processes in the step.
    work: other counters of work.
    loss: called when the step ends.
    """
    attach()
    probe = _state.get("probe")
    if probe is not None:
        probe.guard(probe.begin_explicit)(number, tokens, work or {})
    try:
        yield
    finally:
        if probe is not None:
            probe.guard(lambda: probe.end_explicit(float(loss()) if loss is not None else None))()


def attached() -> Optional[Probe]:
    """Return the probe of this process, None before `attach`."""
    return _state.get("probe")


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


def _warn(error: BaseException) -> None:
    try:
        sys.stderr.write("flightwatch: the probe is off: " + repr(error) + "\n")
    except (OSError, ValueError, AttributeError):
        return

"""Communication that the host waits for: process groups' methods and `Work.wait`, and DDP's reducer.

On a synchronous backend (gloo) the host is blocked while a collective runs, so these times are the step's
exposed communication. On an asynchronous backend (NCCL) they are not: there the device timer brackets the
waits with events, what no event covers stays unattributed (design: never counted as compute), and calls are
counted with their bytes alone.

DDP's reducer is C++ and calls no Python. Its own timers (`_get_ddp_logging_data`) tell the time from the last
gradient to the end of the last all-reduce, which is what the host waited for.
"""

import functools
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from flightwatch.collectors.training.probe import Probe, now_ns
from flightwatch.collectors.training.step import Blocked
from flightwatch.core.vocabulary import OpKind, OpLevel

#: Methods of ProcessGroup that communicate; names differ between torch releases, absent ones are passed over.
METHODS = (
    "allreduce", "allreduce_coalesced", "allgather", "allgather_coalesced", "_allgather_base", "all_gather_single",
    "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_single", "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", "broadcast",
    "reduce", "gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single", "send", "recv",
    "recv_anysource", "barrier", "monitored_barrier",
)  # fmt: skip
_MOST_PENDING = 512

Key = Tuple[str, str]
#: A call that was counted: its key, the time its issue took, the step's note of it.
Issued = Tuple[Key, int, Optional[List[int]]]


class Communication:
    """Patches of torch.distributed, and what is on its way.

    Parameters
    ----------
    name_of: names a process group the same on every rank.
    around_wait: on asynchronous devices, called with True before and False after each wait.
    """

    def __init__(self, probe: Probe, name_of: Callable[[Any], str],
                 around_wait: Optional[Callable[[bool], None]] = None) -> None:  # fmt: skip
        self._probe = probe
        self._name_of = name_of
        self._around_wait = around_wait
        self._pending: Dict[int, Issued] = {}
        self._calls: Dict[str, int] = {}

    def install(self, dist: Any) -> List[str]:
        """Patch the classes; return the names that were there."""
        found = [name for name in METHODS if hasattr(dist.ProcessGroup, name)]
        for name in found:
            setattr(dist.ProcessGroup, name, self._method(name, getattr(dist.ProcessGroup, name)))
        dist.Work.wait = self.waiting(dist.Work.wait, id)
        return found

    def _method(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        probe = self._probe

        @functools.wraps(original)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if probe.off:
                return original(group, *args, **kwargs)
            started_ns = now_ns()
            work = original(group, *args, **kwargs)
            ended_ns = now_ns()
            try:
                found = [] if work is None else [id(work)]
                self.issued((op, self._name_of(group)), started_ns, ended_ns, payload_bytes(args), found)
            except Exception as error:  # Ours, not the training's.
                probe.failed(error)
            probe.self_ns += now_ns() - ended_ns
            return work

        return call

    def issued(self, key: Key, started_ns: int, ended_ns: int, size: int, awaited: List[int]) -> None:
        """Count a call; `awaited` are identities by which waits for it will come."""
        took_ns = ended_ns - started_ns
        self._count(key, took_ns, size)
        op, group = key
        probe = self._probe
        seq = self._calls[group] = self._calls.get(group, 0) + 1
        name = probe.detail.name(OpLevel.OP.value, OpKind.COMM.value, op, group)
        dur_ns = -1 if probe.asynchronous else took_ns
        note = probe.current().note(name, started_ns, dur_ns, size, seq, -1)
        for identity in awaited:
            while len(self._pending) >= _MOST_PENDING:
                self._pending.pop(next(iter(self._pending)))
            self._pending[identity] = (key, took_ns, note)

    def waiting(
        self, original: Callable[..., Any], identify: Callable[[Any], int], again: bool = False
    ) -> Callable[..., Any]:
        """Return a wait that is counted to the call that it waits for.

        Parameters
        ----------
        identify: the identity (see `issued`) of what is waited for.
        again: one call may be waited for several times.
        """
        probe, pending = self._probe, self._pending
        find = pending.get if again else pending.pop

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if probe.off:
                return original(work, *args, **kwargs)
            known = find(identify(work), None)
            self._mark(True)
            started_ns = now_ns()
            try:
                return original(work, *args, **kwargs)
            finally:
                ended_ns = now_ns()
                self._mark(False)
                try:
                    self._waited(known, ended_ns - started_ns)
                except Exception as error:  # Ours, not the training's.
                    probe.failed(error)
                probe.self_ns += now_ns() - ended_ns

        return wait

    def _waited(self, known: Optional[Issued], took_ns: int) -> None:
        if known is None:
            self._count(("wait", ""), took_ns, 0)
            return
        key, issued_ns, note = known
        self._count(key, took_ns, 0, issued_ns)
        if note is not None and note[2] >= 0:
            note[2] += took_ns

    def _mark(self, begins: bool) -> None:
        if self._around_wait is not None:
            try:
                self._around_wait(begins)
            except Exception as error:  # Ours, not the training's.
                self._probe.failed(error)

    def _count(self, key: Key, took_ns: int, size: int, issued_ns: Optional[int] = None) -> None:
        """Count host time; the wait for a call already counted joins that call instead of being another."""
        probe = self._probe
        step = probe.current()
        step.blocked_ns[probe.phase] += took_ns
        blocked = step.blocked.get(key)
        if blocked is None:
            blocked = step.blocked[key] = Blocked()
            blocked.timed = not probe.asynchronous
        if issued_ns is None or blocked.calls == 0:
            blocked.add(took_ns, size)
            return
        total_ns = issued_ns + took_ns
        blocked.ns += took_ns
        blocked.squares_ns2 += total_ns * total_ns - issued_ns * issued_ns
        blocked.longest_ns = max(blocked.longest_ns, total_ns)
        blocked.shortest_ns = total_ns if blocked.calls == 1 else min(blocked.shortest_ns, total_ns)


class Reducer:
    """Times of a DDP module's reducer, read one forward later, when torch has them.

    The module is held weakly: it would otherwise live until the interpreter ends, and its reducer's and process
    group's C++ threads would be joined later than the job means them to be.
    """

    #: On a synchronous device every step is measured; elsewhere torch reads device timers, so only now and then.
    SAMPLED = 10

    def __init__(self, probe: Probe, module: Any, group: str, synchronous: bool) -> None:
        self._probe = probe
        self._module = weakref.ref(module)
        self._group = group
        self._every = 1 if synchronous else self.SAMPLED
        module._set_ddp_runtime_logging_sample_rate(self._every)

    def forward_done(self) -> None:
        """Give the previous step its reducer's times. Called after each training forward of the module."""
        step, module = self._probe.previous, self._module()
        if step is None or module is None or step.reducer_ns is not None or not step.backwards:
            return
        if self._every > 1 and step.number % self._every and step.number > 10:
            return
        logged = module._get_ddp_logging_data()
        communication_ns = _positive(logged.get("backward_comm_time"))
        overlap_ns = _positive(logged.get("backward_compute_comm_overlap_time"))
        if communication_ns is None or overlap_ns is None:
            return
        step.reducer_ns = min(max(0, communication_ns - overlap_ns), step.backward_ns)
        step.hidden_ns = min(overlap_ns, communication_ns)
        size = int(_positive(logged.get("total_parameter_size_bytes")) or 0)
        blocked = step.blocked.setdefault(("reducer_all_reduce", self._group), Blocked())
        blocked.add(step.reducer_ns, size)
        name = self._probe.detail.name(OpLevel.OP.value, OpKind.COMM.value, "reducer_all_reduce", self._group)
        step.note(name, step.end_ns, step.reducer_ns, size, -1, communication_ns)


def payload_bytes(arguments: Tuple[Any, ...]) -> int:
    """Return the bytes of the tensors a collective was called with: of its first argument that has some."""
    total = 0
    stack = list(arguments[:1])
    for _ in range(4096):
        if not stack:
            break
        one = stack.pop()
        if isinstance(one, (list, tuple)):
            stack.extend(one)
        elif hasattr(one, "element_size"):
            total += one.numel() * one.element_size()
    return total


def _positive(value: Any) -> Optional[int]:
    return int(value) if isinstance(value, (int, float)) and value >= 0 else None

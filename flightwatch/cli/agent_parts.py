"""What the agent does besides collecting: profiles and hang evidence, on command and by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.collectors.command import run_command
from flightwatch.collectors.command_handlers import command_handlers
from flightwatch.collectors.hang.evidence import HangCollector
from flightwatch.collectors.hang.progress import ProgressSink
from flightwatch.collectors.op_ring_upload import RingUpload
from flightwatch.collectors.profiler.counter_pause import CounterPause
from flightwatch.collectors.profiler.service import Profiler
from flightwatch.collectors.profiler.settings import ProfilerSettings, profiler_folder
from flightwatch.collectors.training_micro_settings import MicroTraceSettings

if TYPE_CHECKING:
    from flightwatch.collectors.op_ring import OpRing
    from flightwatch.collectors.training_micro import MicroTraces
    from flightwatch.core.clock import Clock
    from flightwatch.core.protocols import BlobSink, Command, Sink
    from flightwatch.core.settings import Loaded


def socket_folder(settings: Loaded, common: CommonSettings) -> str:
    """Return the folder of the profiler's socket of this installation (KINETO_IPC_SOCKET_DIR of its jobs)."""
    section = settings.section(ProfilerSettings)
    return profiler_folder(section, os.path.abspath(common.data_dir), CommonSettings.data_dir)


class AgentParts:
    """Profiler and providers of evidence of one agent.

    Parameters
    ----------
    state_dir: the agent's own folder.
    probe_socket: socket of the probes' receiver; their worker servers are beside it.
    live: False over a recorded tree, where no process runs.
    ring: per-op detail of this node's ranks, None where none is kept.

    Attributes
    ----------
    sink: what collectors emit into, so that a job that stands still is seen.
    """

    def __init__(
        self,
        settings: Loaded,
        common: CommonSettings,
        state_dir: str,
        probe_socket: str,
        sink: Sink,
        blobs: BlobSink,
        clock: Clock,
        live: bool = True,
        ring: OpRing | None = None,
    ) -> None:
        section = settings.section(ProfilerSettings)
        self.profiler: Profiler | None = None
        if section.enabled and live:
            folder = socket_folder(settings, common)
            marker = os.path.join(state_dir, "counters_paused")
            pause = CounterPause(marker, run_command) if section.pause_counters else None
            self.profiler = Profiler(
                folder, state_dir, blobs, sink, clock, abstract=section.abstract, node=common.node_name, pause=pause,
                probe_socket=probe_socket,
            )  # fmt: skip
        hang_seconds = section.hang_seconds if live else 0.0
        beside = os.path.dirname(probe_socket)
        folders = (beside, os.path.join(beside, "profiler"), socket_folder(settings, common))
        self.hang = HangCollector(folders, state_dir, sink, clock, hang_seconds)
        self.sink: Sink = ProgressSink(sink, self.hang.progress)
        self.micro = self._micro_traces(settings.section(MicroTraceSettings), state_dir, sink, clock)
        self._evidence: dict[str, Callable[[Command], None]] = {"hang": self.hang.collect_evidence}
        if ring is not None:
            self._evidence["ring"] = RingUpload(ring, sink, clock).collect_evidence

    def _micro_traces(
        self, section: MicroTraceSettings, state_dir: str, sink: Sink, clock: Clock
    ) -> MicroTraces | None:
        if not section.enabled or self.profiler is None:
            return None
        from flightwatch.collectors.training_micro import MicroSink, MicroTraces

        micro = MicroTraces(section, self.profiler.broker, os.path.join(state_dir, "micro"), sink, clock)
        self.profiler.micro = micro
        self.sink = MicroSink(self.sink, micro)
        return micro

    @property
    def handlers(self) -> Mapping[str, Callable[[Command], None]]:
        """Command type to what does it."""
        return command_handlers(self.profiler, self._evidence)

    def start(self) -> None:
        """Start what runs by itself."""
        if self.profiler is not None:
            self.profiler.start()
        if self.micro is not None:
            self.micro.start()
        self.hang.start()

    def stop(self) -> None:
        """Stop it; training goes on."""
        self.hang.stop()
        if self.micro is not None:
            self.micro.stop()
        if self.profiler is not None:
            self.profiler.stop()

"""NVIDIA devices through the nvidia-smi command, where NVML does not answer."""

from __future__ import annotations

import io
from collections.abc import Iterable

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.live_rows import LiveRows
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import CaptureContext, Row


class NvidiaSmiCollector:
    """Runs `nvidia-smi -q -x` at the interval of commands, only while NVML does not answer."""

    name = "nvidia-smi"
    #: A command can take seconds, and a sick driver blocks it for good: it gets a thread of its own.
    own_thread = True

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.command_interval_seconds
        self._environment = environment
        self._rows = LiveRows(environment, self.name)

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Run the command once.

        Raises
        ------
        NoData: NVML answers, the command is not installed, or the tree is a recorded one.
        TransientError: the command failed, or its output could not be read.
        """
        if not self._environment.live:
            raise NoData("a recorded tree runs no command")
        if self._environment.nvml_answers:
            raise NoData("NVML answers, nvidia-smi is not needed")
        output = self._environment.run_command(
            ("nvidia-smi", "-q", "-x"), self._environment.settings.command_timeout_seconds
        )
        from flightwatch.collectors.captures.nvidia_smi_xml import NvidiaSmiXml

        found = NvidiaSmiXml().parse(io.BytesIO(output), CaptureContext("nvidia-smi -q -x", now_ms))
        rows = self._rows.keep(found, now_ms)
        if not rows:
            errors = self._rows.errors
            raise TransientError(f"nvidia-smi: {errors[0] if errors else 'no GPU in its output'}")
        return rows

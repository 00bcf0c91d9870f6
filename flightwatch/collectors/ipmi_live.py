"""Sensors of this machine's BMC through ipmitool, at the interval of commands."""

from __future__ import annotations

import io
from collections.abc import Iterable

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.sensor_page import SensorPage
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import CaptureContext, Note, Row

#: Device files of the kernel's IPMI driver.
DEVICES = ("ipmi0", "ipmidev", "ipmi")


class IpmiCollector:
    """Runs `ipmitool sdr elist full` and `ipmitool dcmi power reading`."""

    name = "ipmi"
    #: A BMC can take many seconds, and a sick one never answers.
    own_thread = True

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.command_interval_seconds
        self._environment = environment
        self._page = SensorPage(environment, self.name)
        self._has_dcmi = True

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Ask the BMC once.

        Raises
        ------
        NoData: no IPMI device, ipmitool not installed, or a recorded tree.
        TransientError: ipmitool failed or printed no sensor.
        """
        if not self._environment.live:
            raise NoData("a recorded tree runs no command")
        if not set(DEVICES) & set(self._environment.tree.listdir("dev")):
            raise NoData("no IPMI device in /dev")
        from flightwatch.collectors.captures.ipmi import IpmiParser

        found: list[Row | Note] = []
        for words in self._commands():
            output = self._run(words)
            if output:
                found += IpmiParser().parse(io.BytesIO(output), CaptureContext(" ".join(words), now_ms))
        return self._page.take(_one_node_row(found), now_ms)

    def _commands(self) -> list[tuple[str, ...]]:
        commands: list[tuple[str, ...]] = [("ipmitool", "sdr", "elist", "full")]
        return [*commands, ("ipmitool", "dcmi", "power", "reading")] if self._has_dcmi else commands

    def _run(self, words: tuple[str, ...]) -> bytes:
        try:
            return self._environment.run_command(words, self._environment.settings.command_timeout_seconds)
        except TransientError:
            if words[1] != "dcmi":
                raise
            # Many BMCs have no DCMI: its absence is found once and not asked for again.
            self._has_dcmi = False
            return b""


def _one_node_row(items: list[Row | Note]) -> list[Row | Note]:
    """Merge the parts of the node's row; the DCMI reading, which comes last, is the host's power."""
    merged: dict[str, object] = {}
    rest: list[Row | Note] = []
    for item in items:
        if isinstance(item, Row) and item.table == "node_samples":
            merged.update({name: value for name, value in item.values.items() if value is not None})
        else:
            rest.append(item)
    return [*rest, Row("node_samples", merged)] if merged else rest  # type: ignore[arg-type]

"""Collectors that run a vendor's command and read its output with the capture parsers."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.live_rows import LiveRows
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import CaptureContext, Row

if TYPE_CHECKING:
    from flightwatch.collectors.captures.base import Parser


class CommandCollector:
    """Runs the first of its commands that is installed, at the interval of commands.

    Attributes
    ----------
    COMMANDS: (program and arguments, "module:Class" of the parser below collectors.captures); the next one is
        tried when a program is not installed.
    FURTHER: commands asked besides, whose absence or failure is no failure of the collector.
    """

    name: ClassVar[str]
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]]
    FURTHER: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = ()
    #: A command can take seconds, and a sick driver blocks it for good: it gets a thread of its own.
    own_thread = True

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = max(30.0, environment.settings.command_interval_seconds)
        self._environment = environment
        self._rows = LiveRows(environment, self.name)
        self._further = [LiveRows(environment, f"{self.name} {index}") for index in range(len(self.FURTHER))]

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Run the command once.

        Raises
        ------
        NoData: none of the commands is installed, or the tree is a recorded one.
        TransientError: the command failed, took too long, or its output holds no device.
        """
        if not self._environment.live:
            raise NoData("a recorded tree runs no command")
        rows = self._first(now_ms)
        for (words, parser), memory in zip(self.FURTHER, self._further, strict=True):
            try:
                rows.extend(self._run(words, parser, memory, now_ms))
            except (NoData, TransientError):
                continue
        return rows

    def _first(self, now_ms: int) -> list[Row]:
        absent: list[str] = []
        for words, parser in self.COMMANDS:
            try:
                return self._run(words, parser, self._rows, now_ms)
            except NoData as error:
                absent.append(str(error))
        raise NoData("; ".join(absent))

    def _run(self, words: tuple[str, ...], target: str, memory: LiveRows, now_ms: int) -> list[Row]:
        output = self._environment.run_command(words, self._environment.settings.command_timeout_seconds)
        from flightwatch.collectors.captures import registry  # an agent without this vendor's command never needs it

        parser = cast("Parser", registry.load(target))
        command = " ".join(words)
        rows = memory.keep(parser.parse(io.BytesIO(output), CaptureContext(command, now_ms)), now_ms)
        if not any(row.table in ("device_samples", "sensor_samples") for row in rows):
            raise TransientError(f"{command}: {memory.errors[0] if memory.errors else 'no device in its output'}")
        return rows

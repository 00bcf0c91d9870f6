"""Cambricon devices through cnmon."""

from __future__ import annotations

from typing import ClassVar

from flightwatch.collectors.vendors.command import CommandCollector


class CambriconCollector(CommandCollector):
    """Runs `cnmon`."""

    name = "cambricon"
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = ((("cnmon",), "cambricon:Cnmon"),)

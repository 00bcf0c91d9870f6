"""Iluvatar devices through ixsmi."""

from __future__ import annotations

from typing import ClassVar

from flightwatch.collectors.vendors.command import CommandCollector


class IluvatarCollector(CommandCollector):
    """Runs `ixsmi`."""

    name = "iluvatar"
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = ((("ixsmi",), "iluvatar:Ixsmi"),)

"""Hygon devices through hy-smi."""

from __future__ import annotations

from typing import ClassVar

from flightwatch.collectors.vendors.command import CommandCollector


class HygonCollector(CommandCollector):
    """Runs `hy-smi -a --json`."""

    name = "hygon"
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = ((("hy-smi", "-a", "--json"), "hygon:HySmi"),)

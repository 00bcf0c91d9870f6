"""MetaX devices through mx-smi."""

from __future__ import annotations

from typing import ClassVar

from flightwatch.collectors.vendors.command import CommandCollector


class MetaxCollector(CommandCollector):
    """Runs `mx-smi`, and `mx-smi --show-temperature` for hotspot and board sensors."""

    name = "metax"
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = ((("mx-smi",), "metax:MxSmi"),)
    FURTHER: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = (
        (("mx-smi", "--show-temperature"), "metax:MxSmiShow"),
    )

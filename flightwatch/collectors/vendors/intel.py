"""Intel devices through xpu-smi."""

from __future__ import annotations

from typing import ClassVar

from flightwatch.collectors.vendors.command import CommandCollector

#: Utilisation, power, frequency, core and memory temperature, energy, errors, memory, bandwidth, throttle reason.
_METRICS = "0,1,2,3,4,8,17,18,28,29,34"


class IntelCollector(CommandCollector):
    """Runs `xpu-smi dump` for one sample of every device."""

    name = "intel"
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = (
        (("xpu-smi", "dump", "-d", "-1", "-m", _METRICS, "-n", "1"), "intel:XpuSmiDump"),
    )

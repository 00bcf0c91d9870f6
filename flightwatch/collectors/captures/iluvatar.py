"""Iluvatar `ixsmi`: its boxed table, and its nvidia-smi style query CSV."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from flightwatch.collectors.captures.box_reports import BoxReport
from flightwatch.collectors.captures.device_rows import Device


class Ixsmi(BoxReport):
    """Reads `ixsmi`. On dual-die boards die 0 shows no power and die 1 shows the board's."""

    name = "ixsmi"
    VENDOR = "iluvatar"
    BANNER: ClassVar[re.Pattern[str]] = re.compile(
        r"IX-ML:\s*(?P<ixml>\S+)\s+Driver Version:\s*(?P<driver>\S+)(?:\s+CUDA Version:\s*(?P<cuda>\S+))?"
    )
    LABELS: ClassVar[Mapping[str, str]] = {
        "clock-sm": r"(?P<sm_clock>\S+)", "clock-mem": r"(?P<mem_clock>\S+)",
    }  # fmt: skip
    CELLS: ClassVar[Mapping[str, str]] = {
        **BoxReport.CELLS, "sm_clock_mhz": "sm_clock", "mem_clock_mhz": "mem_clock",
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "power_w": "N/A on the first die of a dual-die board: the second die shows the board's power",
        "fan_pct": "N/A on passively cooled boards",
    }

    def further(self, device: Device, cells: Mapping[str, str]) -> None:
        """Say why a die shows no power."""
        if device.value("power_w") is None and device.value("temp_c") is not None:
            device.note("info", "no power of its own: on a dual-die board the other die shows the board's power")

"""Huawei Ascend devices through npu-smi."""

from __future__ import annotations

from typing import ClassVar

from flightwatch.collectors.vendors.command import CommandCollector


class AscendCollector(CommandCollector):
    """Runs `npu-smi info`. ECC counters need one further call a device and are left to npu-exporter's scrape."""

    name = "ascend"
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = ((("npu-smi", "info"), "ascend:NpuSmiInfo"),)

"""Cambricon `cnmon`: the boxed table of releases 4 to 6."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from flightwatch.collectors.captures.box_reports import BoxReport
from flightwatch.collectors.captures.device_rows import Device
from flightwatch.collectors.captures.quantities import ABSENT, MALFORMED, reason_for, text_or_none


class Cnmon(BoxReport):
    """Reads `cnmon`. Ecc-Error N/A means that inline ECC is off, a number that it is on."""

    name = "cnmon"
    VENDOR = "cambricon"
    BANNER: ClassVar[re.Pattern[str]] = re.compile(r"CNMON v(?P<cnmon>\S+)(?:\s+Driver v?(?P<driver>\S+))?")
    LABELS: ClassVar[Mapping[str, str]] = {
        "vf": r"(?P<vf>\S+)", "name": r"(?P<name>\S+)", "firmware": r"(?P<firmware>\S+)", "util": r"(?P<util>\S+)",
        "ecc-error": r"(?P<ecc>\S+)", "mode": r"(?P<mode>\S+)", "sr-iov": r"(?P<mode>\S+)", "mim": r"(?P<mode>\S+)",
        "compute-mode": r"(?P<compute>.+?)", "inited": r"(?P<inited>\S+)", "driver": r"(?P<card_driver>\S+)",
        "vmemory-usage": r"[^|]*?",
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "ecc_uncorrected_total": "the table counts ECC errors of both kinds together: extra cambricon.ecc_errors",
        "ecc_mode": "unknown when the Ecc-Error cell is missing",
        "power_limit_w": "never, unless the table is cut",
    }

    def further(self, device: Device, cells: Mapping[str, str]) -> None:
        """Read ECC, firmware and the driver of older releases."""
        ecc = cells.get("ecc")
        if ecc is not None and ecc.isascii() and ecc.isdigit():
            device.put("ecc_mode", "enabled")
            device.extra("cambricon.ecc_errors", ecc, "count")
            if int(ecc[:18]) == 0:
                # Neither kind can be above a sum of 0.
                device.put("ecc_corrected_total", 0)
                device.put("ecc_uncorrected_total", 0)
        else:
            for column in ("ecc_mode", "ecc_corrected_total", "ecc_uncorrected_total"):
                device.unknown(column, (reason_for(ecc) or MALFORMED) if ecc is not None else ABSENT)
        device.config("firmware", text_or_none(cells.get("firmware")))
        device.config("driver", text_or_none(cells.get("card_driver")))

"""`amd-smi monitor` as text: columns by header, units apart from their numbers."""

from __future__ import annotations

import io
from typing import Any

import pytest

from flightwatch.collectors.captures.registry import parsers
from flightwatch.core.protocols import CaptureContext, Note, Row

WHOLE = (
    "GPU  POWER  GPU_TEMP  MEM_TEMP  GFX_UTIL  GFX_CLOCK  MEM_UTIL  MEM_CLOCK  ENC_UTIL  ENC_CLOCK     THROTTLE"
    "  SINGLE_ECC  DOUBLE_ECC  PCIE_REPLAY  VRAM_USED  VRAM_TOTAL   PCIE_BW\n"
    "  0  512 W     71 °C     63 °C      99 %   2103 MHz      41 %   1300 MHz       N/A      N/A  UNTHROTTLED"
    "           7           0            3   1024 MB   196592 MB  N/A Mb/s\n"
    "  1    N/A       N/A       N/A       N/A        N/A       N/A        N/A       N/A      N/A          N/A"
    "         N/A         N/A          N/A       N/A         N/A  N/A Mb/s\n"
)
SHORT = (
    "AMDSMI Tool: 25.3.0 | ROCm version: 6.4.0\n"
    "GPU  POWER  PWR_CAP  GPU_T  MEM_T  GFX_CLK   GFX%   MEM%   VRAM_USAGE\n"
    "  3  140 W    750 W  41 °C  33 °C  131 MHz    7 %    0 %  0.3/192.0 GB\n"
    "  4  140 W    750 W  41 °C\n"
)


def read(text: str) -> tuple[list[dict[str, Any]], list[Note]]:
    data = text.encode()
    parser = next(parser for parser in parsers() if parser.recognise(data))
    assert parser.name == "amd-smi-csv"
    items = list(parser.parse(io.BytesIO(data), CaptureContext("x")))
    return (
        [item.values for item in items if isinstance(item, Row) and item.table == "device_samples"],
        [item for item in items if isinstance(item, Note) and item.level == "error"],
    )


def test_every_column() -> None:
    (first, silent), errors = read(WHOLE)
    assert not errors
    found = {name: value for name, value in first.items() if value is not None and name != "extra"}
    assert found == {
        "device": 0, "vendor": "amd", "power_w": 512.0, "hotspot_c": 71.0, "mem_temp_c": 63.0, "util_pct": 99.0,
        "sm_clock_mhz": 2103.0, "mem_util_pct": 41.0, "mem_clock_mhz": 1300.0, "throttle_reasons": 0,
        "ecc_corrected_total": 7, "ecc_uncorrected_total": 0, "pcie_replay_total": 3, "mem_used_bytes": 1024 << 20,
        "mem_total_bytes": 196592 << 20,
    }  # fmt: skip
    assert {name for name, value in silent.items() if value is not None} == {"device", "vendor"}


def test_the_short_header_and_a_cut_line() -> None:
    (row,), errors = read(SHORT)
    assert (row["device"], row["power_limit_w"], row["hotspot_c"], row["util_pct"]) == (3, 750.0, 41.0, 7.0)
    assert row["mem_total_bytes"] == pytest.approx(192 * 2**30)
    assert [note.where for note in errors] == ["line 4"]

"""rocm-smi's table names its temperature sensor below the word Temp: the junction is not the die edge."""

from __future__ import annotations

import io

import pytest

from flightwatch.collectors.captures.rocm import ConciseTable
from flightwatch.core.protocols import CaptureContext, Row

TABLE = """\
========================= ROCm System Management Interface =========================
=================================== Concise Info ===================================
Device  Node  IDs              Temp        Power     Partitions          SCLK    MCLK    Fan  Perf  PwrCap  VRAM%  GPU%
              (DID,     GUID)  ({sensor})  (Socket)  (Mem, Compute, ID)
====================================================================================
0       2     0x74a1,   28851  41.0°C      140.0W    NPS1, SPX, 0        132Mhz  900Mhz  0%   auto  750.0W  0%     3%
====================================================================================
"""


@pytest.mark.parametrize(
    ("sensor", "column", "other"), [("Junction", "hotspot_c", "temp_c"), ("DieEdge", "temp_c", "hotspot_c")]
)
def test_the_named_sensor_decides_the_column(sensor: str, column: str, other: str) -> None:
    stream = io.BytesIO(TABLE.format(sensor=sensor).encode())
    rows = [one for one in ConciseTable().parse(stream, CaptureContext()) if isinstance(one, Row)]
    device = next(row.values for row in rows if row.table == "device_samples")
    assert (device[column], device[other], device["power_w"]) == (41.0, None, 140.0)

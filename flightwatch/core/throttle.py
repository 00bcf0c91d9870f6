"""The bit set in `device_samples.throttle_reasons`: why clocks are below their maximum.

The values are NVIDIA's "clocks event reasons" (nvmlClocksEventReason*), which other vendors'
parsers map their own words onto.
"""

from enum import IntFlag


class ThrottleReason(IntFlag):
    """Why clocks are held down. IDLE, APPLICATION_CLOCKS and SYNC_BOOST are no fault."""

    IDLE = 0x1
    APPLICATION_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100


THERMAL = ThrottleReason.SW_THERMAL | ThrottleReason.HW_THERMAL

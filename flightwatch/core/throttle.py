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


#: Reasons that mean the device is slower than it should be.
SLOWDOWN = (
    ThrottleReason.SW_POWER_CAP
    | ThrottleReason.HW_SLOWDOWN
    | ThrottleReason.SW_THERMAL
    | ThrottleReason.HW_THERMAL
    | ThrottleReason.HW_POWER_BRAKE
)
THERMAL = ThrottleReason.SW_THERMAL | ThrottleReason.HW_THERMAL
POWER = ThrottleReason.SW_POWER_CAP | ThrottleReason.HW_POWER_BRAKE


def reason_names(bits: int) -> tuple[str, ...]:
    """Return the lower-case names of the bits that are set, lowest first; unknown bits as `bit_<n>`."""
    names = []
    for position in range(bits.bit_length()):
        if bits >> position & 1:
            known = 1 << position
            names.append(
                ThrottleReason(known).name.lower()  # type: ignore[union-attr]
                if known in ThrottleReason._value2member_map_
                else f"bit_{position}"
            )
    return tuple(names)

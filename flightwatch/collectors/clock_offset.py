"""Offset of this machine's clock from its time source, as the kernel's clock discipline knows it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

STA_UNSYNC = 0x0040
STA_NANO = 0x2000
TIME_ERROR = 5


class _Timex(ctypes.Structure):
    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time_sec", ctypes.c_long),
        ("time_usec", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    ]


def offset_us(state: int, status: int, offset: int) -> float | None:
    """Return the offset in microseconds, None when the clock is not synchronised.

    Parameters
    ----------
    state: what adjtimex(2) returned.
    status, offset: fields of its answer; `offset` is in ns when STA_NANO is set, else in us.
    """
    if state < 0 or state == TIME_ERROR or status & STA_UNSYNC:
        return None
    return offset / 1000 if status & STA_NANO else float(offset)


def kernel_clock() -> Callable[[], float | None]:
    """Return a function that reads the offset; it always answers None where the call is missing."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return lambda: None
    timex = _Timex()

    def read() -> float | None:
        timex.modes = 0
        state = adjtimex(ctypes.byref(timex))
        return offset_us(state, timex.status, timex.offset)

    return read

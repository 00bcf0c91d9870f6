"""What the mappings of single exporters share: devices told apart by labels, times, stale samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Protocol

from flightwatch.collectors.captures.base import to_int
from flightwatch.collectors.captures.device_rows import STALE_AFTER_MS, Carries, Device
from flightwatch.collectors.captures.openmetrics_text import Family, Sample
from flightwatch.core.clock import iso_utc
from flightwatch.core.protocols import CaptureContext, Note, Row

#: Devices kept per exposition; an exporter with more is broken or hostile.
DEVICES_LIMIT = 2048


class ExporterMap(Protocol):
    """Maps the metrics of one exporter to rows. One instance reads one exposition."""

    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]]

    def __init__(self, context: CaptureContext, now_ms: int) -> None:
        """Start an exposition; `now_ms` is the time against which samples are stale."""

    @staticmethod
    def owns(name: str) -> bool:
        """Say whether a metric name belongs to this exporter."""

    def take(self, sample: Sample, family: Family) -> None:
        """Take one sample of this exporter."""

    def finish(self) -> Iterator[Row | Note]:
        """Yield all rows and notes."""


class DeviceSet:
    """The devices of one exposition, keyed by what their labels say.

    Parameters
    ----------
    carries, context, vendor: as for `Device`.
    now_ms: time against which a sample's own time is old.
    """

    def __init__(self, carries: Carries, context: CaptureContext, vendor: str, now_ms: int) -> None:
        self._carries = carries
        self._context = context
        self._vendor = vendor
        self._now_ms = now_ms
        self._times: dict[str, int] = {}
        self.devices: dict[str, Device] = {}
        self.dropped = 0

    def get(self, key: str, sample: Sample, where: str = "") -> Device | None:
        """Return the device of a key, a new one when it is new; None when there are too many."""
        device = self.devices.get(key)
        if device is None:
            if len(self.devices) >= DEVICES_LIMIT:
                self.dropped += 1
                return None
            device = Device(self._carries, self._context, self._vendor, where or f"{self._vendor} {key}")
            self.devices[key] = device
        if sample.at_ms is not None:
            self._times[key] = max(sample.at_ms, self._times.get(key, sample.at_ms))
        return device

    def rows(self) -> Iterator[Row | Note]:
        """Yield the rows of all devices; a device whose newest sample is old is marked stale."""
        for key, device in self.devices.items():
            at_ms = self._times.get(key)
            if at_ms is not None and self._now_ms - at_ms > STALE_AFTER_MS:
                age_s = (self._now_ms - at_ms) // 1000
                device.flag("stale", f"the samples carry the time {iso_utc(clamp_ms(at_ms))}, {age_s} s ago")
            yield from device.rows(clamp_ms(at_ms) if at_ms is not None else None, zoned=True)
        if self.dropped:
            yield Note("warning", "", f"samples of devices beyond the first {DEVICES_LIMIT} were not read")


def clamp_ms(at_ms: int) -> int:
    """Keep a time inside the years a timestamp column can hold (1970 to 2261)."""
    return min(max(at_ms, 0), 9_200_000_000_000)


def device_index(labels: Mapping[str, str], *names: str) -> int | None:
    """Return the device index from the first label that holds one ("0", "nvidia0", "card1")."""
    for name in names:
        text = labels.get(name, "")
        digits = text.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_")
        value = to_int(digits) if digits and len(digits) <= 4 else None
        if value is not None and value >= 0:
            return value
    return None

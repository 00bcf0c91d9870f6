"""Rows of measurements that state a fault by themselves, as events that can be grouped with the others.

Only what the device or its firmware itself calls wrong: no thresholds are applied here. Counters over a
device's life are history, not a fault now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flightwatch.core.protocols import Value
from flightwatch.core.vocabulary import EventSeverity


def signs_of(table: str, values: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """Yield `events` values for one row; nothing for a row that states no fault."""
    if table == "device_samples":
        yield from _device(values)
    elif table == "sensor_samples":
        yield from _sensor(values)
    elif table == "node_samples":
        uncorrected = values.get("edac_uncorrected_total")
        if isinstance(uncorrected, int) and uncorrected > 0:
            yield _event(values, "edac:ue", EventSeverity.CRITICAL, f"{uncorrected} uncorrected host memory errors")


def _device(values: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    if values.get("remap_failure") is True:
        yield _event(values, "remap:failure", EventSeverity.CRITICAL, "a memory row remap failed")
    if values.get("remap_pending") is True:
        yield _event(values, "remap:pending", EventSeverity.ERROR, "a memory row remap waits for a reset")
    uncorrected = values.get("ecc_uncorrected_total")
    if isinstance(uncorrected, int) and uncorrected > 0:
        yield _event(
            values, "ecc:uncorrected", EventSeverity.ERROR, f"{uncorrected} uncorrected memory errors since driver load"
        )
    headroom = values.get("temp_headroom_c")
    if isinstance(headroom, (int, float)) and headroom <= 0:
        yield _event(values, "device:no_headroom", EventSeverity.ERROR, f"{headroom} C left before slowdown")


def _sensor(values: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    status, chip = values.get("status"), values.get("chip")
    if status != "critical" or chip == "nccl-tests":
        return
    label, quantity = values.get("label"), values.get("quantity")
    words = f"{label} {quantity}".lower()
    code = "fan:failed" if "fan" in words else "psu:failed" if "psu" in words or "power supply" in words else ""
    code = code or "sensor:critical"
    yield _event(values, code, EventSeverity.ERROR, f"{chip} {label} is critical", {"sensor": str(label)})


def _event(
    values: Mapping[str, Value], code: str, severity: EventSeverity, message: str, attrs: dict[str, str] | None = None
) -> dict[str, Value]:
    return {
        "ts": values.get("ts"), "node": values.get("node"), "device": values.get("device"), "code": code,
        "severity": severity.value, "message": message, "attrs": attrs or {},
    }  # fmt: skip

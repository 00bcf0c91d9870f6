"""Optical modules: per-lane readings into one port's weakest-lane columns and one sensor row per lane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flightwatch.collectors.captures.base import to_float
from flightwatch.core.protocols import Note, Value

OPTICS_COLUMNS = ("optics_rx_power_dbm", "optics_tx_power_dbm", "optics_bias_ma", "optics_temp_c")
#: quantity to (unit, port column, which lane the column shows).
LANE_QUANTITIES = {
    "rx_power": ("dBm", "optics_rx_power_dbm", min),
    "tx_power": ("dBm", "optics_tx_power_dbm", min),
    "bias": ("mA", "optics_bias_ma", max),
}
#: Outside these a module's register is empty or its reading is garbage (an unplugged or copper module).
_PLAUSIBLE = {
    "rx_power": (-60.0, 30.0),
    "tx_power": (-60.0, 30.0),
    "bias": (0.0, 2000.0),
    "temperature": (-60.0, 150.0),
    "voltage": (0.0, 60_000.0),
}


@dataclass
class Optics:
    """Readings of one module. `None` in a lane: no light, or not readable."""

    lanes: dict[str, dict[str, float | None]] = field(default_factory=dict)
    temp_c: float | None = None
    voltage_mv: float | None = None
    notes: list[Note] = field(default_factory=list)

    def lane(self, quantity: str, lane: str, text: str, where: str) -> None:
        """Take one lane's reading; `text` is the number alone."""
        self.lanes.setdefault(quantity, {})[lane] = self._checked(quantity, text, where, f"lane {lane}")

    def temperature(self, text: str, where: str) -> None:
        """Take the module temperature in degrees C."""
        self.temp_c = self._checked("temperature", text, where, "module")

    def voltage(self, text: str, scale: float, where: str) -> None:
        """Take the module's supply voltage; `scale` makes millivolts of the printed unit."""
        volts = to_float(text)
        self.voltage_mv = None if volts is None else self._checked("voltage", str(volts * scale), where, "module")

    def _checked(self, quantity: str, text: str, where: str, what: str) -> float | None:
        value = to_float(text)
        if value is None:
            dark = text.strip().lower().startswith("-inf")
            reason = "measures no light (-inf dBm)" if dark else "is not a number"
            self.notes.append(Note("warning" if dark else "info", where, f"{what}: {quantity} {reason}"))
            return None
        low, high = _PLAUSIBLE[quantity]
        if not low <= value <= high:
            self.notes.append(Note("warning", where, f"{what}: {quantity} {value} is implausible and left out"))
            return None
        return value

    def port_values(self) -> dict[str, Value]:
        """Return the port columns: weakest lane's power, highest bias, module temperature."""
        values: dict[str, Value] = {"optics_temp_c": self.temp_c}
        for quantity, (_, column, choose) in LANE_QUANTITIES.items():
            readings = [value for value in self.lanes.get(quantity, {}).values() if value is not None]
            values[column] = choose(readings) if readings else None
        return values

    def sensor_values(self, hca: str | None) -> Iterator[dict[str, Value]]:
        """Yield the values of one sensor_samples row per lane and quantity, and of the module's own."""
        chip = f"optics.{hca}" if hca else "optics"
        for quantity, lanes in self.lanes.items():
            unit = LANE_QUANTITIES[quantity][0]
            for lane, value in lanes.items():
                yield {"chip": chip, "label": f"lane {lane}", "quantity": quantity, "unit": unit, "value": value}
        if self.temp_c is not None:
            yield {"chip": chip, "label": "module", "quantity": "temperature", "unit": "C", "value": self.temp_c}
        if self.voltage_mv is not None:
            yield {"chip": chip, "label": "module", "quantity": "voltage", "unit": "mV", "value": self.voltage_mv}

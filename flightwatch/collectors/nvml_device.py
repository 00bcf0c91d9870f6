"""One NVIDIA device read through NVML: which calls, which fields, in which units.

Most values come in one `nvmlDeviceGetFieldValues` call. What a device answers with "not supported"
is NULL and is asked again only after RETRY_SECONDS, since each refusal costs an ioctl and an exception.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flightwatch.core.protocols import Value

RETRY_SECONDS = 600.0
#: Figures that hardly move are asked this often and repeated in the rows between.
SLOW_SECONDS = 30.0

_ALL_LINKS = 0xFFFFFFFF
#: nvmlFieldValue_t: field id, scope, timestamp, latency, type of the value, return code, value.
_FIELD_VALUE = struct.Struct("=IIqqII8s")
#: Type of the value (nvmlValueType_t) to its form in the eight bytes.
_VALUE_FORMS = tuple(struct.Struct("=" + form) for form in ("d", "I4x", "Q", "Q", "q", "i4x", "H6x"))
#: Codes of NVML that mean "this device or driver does not have it".
_UNSUPPORTED = frozenset((2, 3, 4, 6, 13, 21, 22, 25, 26))
GPU_IS_LOST, RESET_REQUIRED = 15, 16

#: Field id, scope: name under which `_columns` finds it.
FIELDS: tuple[tuple[int, int, str], ...] = (
    (82, 0, "mem_temp"),
    (185, 0, "power_average_mw"),
    (186, 0, "power_instant_mw"),
    (83, 0, "energy_mj"),
    (3, 0, "ecc_sbe"),
    (4, 0, "ecc_dbe"),
    (5, 0, "ecc_sbe_life"),
    (6, 0, "ecc_dbe_life"),
    (29, 0, "retired_sbe"),
    (30, 0, "retired_dbe"),
    (142, 0, "remapped_cor"),
    (143, 0, "remapped_unc"),
    (144, 0, "remap_pending"),
    (145, 0, "remap_failure"),
    (74, 0, "power_cap_ns"),
    (75, 0, "thermal_policy_ns"),
    (269, 0, "sw_thermal_ns"),
    (270, 0, "hw_thermal_ns"),
    (271, 0, "power_brake_ns"),
    (94, 0, "pcie_replay"),
    (197, 0, "pcie_tx_bytes"),
    (198, 0, "pcie_rx_bytes"),
    (138, _ALL_LINKS, "link_tx_kib"),
    (139, _ALL_LINKS, "link_rx_kib"),
    (38, 0, "link_crc_flit"),
    (45, 0, "link_crc_data"),
    (52, 0, "link_replay"),
    (59, 0, "link_recovery"),
)


#: Columns of `device_samples` that NVML fills.
NVML_COLUMNS = (
    "device", "parent_device", "mig_id", "vendor", "model", "uuid", "serial", "temp_c", "temp_headroom_c", "mem_temp_c",
    "power_w", "power_instant_w", "power_limit_w", "energy_j_total", "sm_clock_mhz", "mem_clock_mhz", "util_pct",
    "mem_util_pct", "mem_used_bytes", "mem_total_bytes", "fan_pct", "ecc_mode", "ecc_corrected_total",
    "ecc_uncorrected_total", "ecc_corrected_lifetime_total", "ecc_uncorrected_lifetime_total", "retired_pages_total",
    "remapped_rows_total", "remap_pending", "remap_failure", "throttle_reasons", "throttle_thermal_us_total",
    "throttle_power_us_total", "pcie_replay_total", "pcie_gen", "pcie_width", "pcie_rx_bytes_total",
    "pcie_tx_bytes_total", "link_rx_bytes_total", "link_tx_bytes_total", "link_errors_total", "quality",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Library:
    """NVML: the functions of the pynvml module, and one that it offers only at a high price.

    Attributes
    ----------
    module: pynvml, or a stand-in with the same functions.
    field_values: the library's own `nvmlDeviceGetFieldValues(handle, count, buffer)`, which returns NVML's code.
        pynvml's wrapper spends 15 us of Python a device and second on building and reading its structures.
    """

    module: Any
    field_values: Callable[[Any, int, Any], int]


class Fields:
    """A set of fields that is asked in one call, again and again.

    Parameters
    ----------
    wanted: field id, scope and name of each.
    """

    def __init__(self, wanted: Sequence[tuple[int, int, str]]) -> None:
        self.wanted = tuple(wanted)
        self._buffer = ctypes.create_string_buffer(max(1, _FIELD_VALUE.size * len(self.wanted)))
        for place, (field, scope, _) in enumerate(self.wanted):
            _FIELD_VALUE.pack_into(self._buffer, place * _FIELD_VALUE.size, field, scope, 0, 0, 0, 0, b"")

    def ask(self, library: Library, handle: Any) -> Iterator[tuple[str, int, int | float | None]]:
        """Yield (name, NVML's code, value or None) of every field. Raises NVMLError when the call itself fails."""
        code = library.field_values(handle, len(self.wanted), self._buffer)
        if code != 0:
            raise library.module.NVMLError(code)
        for (_, _, name), answer in zip(self.wanted, _FIELD_VALUE.iter_unpack(self._buffer), strict=True):
            kind, result = answer[4], answer[5]
            known = result == 0 and kind < len(_VALUE_FORMS)
            yield name, result, _VALUE_FORMS[kind].unpack(answer[6])[0] if known else None


class DeviceLost(Exception):
    """The device fell off the bus or must be reset; the text says which."""


class Questions:
    """Asks NVML about one handle and remembers what it does not support.

    Parameters
    ----------
    monotonic_s: source of time for RETRY_SECONDS.
    """

    def __init__(self, library: Library, monotonic_s: Callable[[], float]) -> None:
        self._library = library
        self._nvml = library.module
        self._monotonic_s = monotonic_s
        self._refused: dict[str, float] = {}

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call `nvmlDeviceGet<name>`; None when unsupported. Raises DeviceLost, or NVMLError for other trouble."""
        refused_at = self._refused.get(name) if self._refused else None
        if refused_at is not None:
            if self._monotonic_s() - refused_at < RETRY_SECONDS:
                return None
            del self._refused[name]
        try:
            return getattr(self._nvml, "nvmlDeviceGet" + name)(*arguments)
        except AttributeError:
            self._refused[name] = self._monotonic_s()
        except self._nvml.NVMLError as error:
            self._refuse(name, error)
        return None

    def ask_fields(self, fields: Fields, handle: Any) -> list[tuple[str, int, int | float | None]]:
        """Ask for fields as `Fields.ask` does; an empty list when the driver knows no fields."""
        if self._refused and "FieldValues" in self._refused:
            return []
        try:
            return list(fields.ask(self._library, handle))
        except self._nvml.NVMLError as error:
            self._refuse("FieldValues", error)
        return []

    def _refuse(self, name: str, error: Exception) -> None:
        code = getattr(error, "value", None)
        if code in (GPU_IS_LOST, RESET_REQUIRED):
            raise DeviceLost(
                "the GPU is lost (fell off the bus)" if code == GPU_IS_LOST else "the GPU needs a reset"
            ) from error
        if code not in _UNSUPPORTED:
            raise error
        self._refused[name] = self._monotonic_s()


class NvmlDevice:
    """One physical device.

    Parameters
    ----------
    index: NVML's index, which is the order of PCI addresses.
    handle: NVML's handle.
    """

    def __init__(self, library: Library, index: int, handle: Any, monotonic_s: Callable[[], float]) -> None:
        self.index = index
        self.handle = handle
        self.questions = Questions(library, monotonic_s)
        self.lost = ""
        self.mig_enabled = False
        self._monotonic_s = monotonic_s
        self._fields = Fields(FIELDS)
        self._fields_at = monotonic_s()
        self._slow: dict[str, Value] = {}
        self._slow_at = float("-inf")
        ask = self.questions.ask
        self.identity: dict[str, Value] = {
            "device": index,
            "vendor": "nvidia",
            "model": words(ask("Name", handle)),
            "uuid": words(ask("UUID", handle)),
            "serial": words(ask("Serial", handle)),
        }
        #: PCI address as the driver writes it, "" when it does not say.
        self.address = words(getattr(ask("PciInfo", handle), "busId", None)) or ""

    def read(self, now_ms: int) -> dict[str, Value]:
        """Return the columns of one row. Raises DeviceLost, or NVMLError when the library itself fails."""
        handle, ask = self.handle, self.questions.ask
        values = self.identity.copy()
        values["ts"] = now_ms
        values.update(self._slowly())
        values["temp_c"] = ask("Temperature", handle, 0)
        values["temp_headroom_c"] = ask("MarginTemperature", handle)
        values["sm_clock_mhz"] = ask("ClockInfo", handle, 1)
        values["mem_clock_mhz"] = ask("ClockInfo", handle, 2)
        utilisation = ask("UtilizationRates", handle)
        if utilisation is not None:
            values["util_pct"], values["mem_util_pct"] = utilisation.gpu, utilisation.memory
        memory = ask("MemoryInfo", handle)
        if memory is not None:
            values["mem_used_bytes"], values["mem_total_bytes"] = memory.used, memory.total
        reasons = ask("CurrentClocksEventReasons", handle)
        values["throttle_reasons"] = ask("CurrentClocksThrottleReasons", handle) if reasons is None else reasons
        fields = self._field_values()
        values.update(_columns(fields))
        if values.get("power_w") is None:
            values["power_w"] = _scaled(ask("PowerUsage", handle), 1000)
        return values

    def _slowly(self) -> dict[str, Value]:
        now_s = self._monotonic_s()
        if now_s - self._slow_at >= SLOW_SECONDS:
            self._slow_at = now_s
            handle, ask = self.handle, self.questions.ask
            ecc = ask("EccMode", handle)
            mig = ask("MigMode", handle)
            self.mig_enabled = bool(mig and mig[0])
            self._slow = {
                "power_limit_w": _scaled(ask("EnforcedPowerLimit", handle), 1000),
                "fan_pct": ask("FanSpeed", handle),
                "pcie_gen": ask("CurrPcieLinkGeneration", handle),
                "pcie_width": ask("CurrPcieLinkWidth", handle),
                "ecc_mode": None if ecc is None else ("enabled" if ecc[0] else "disabled"),
            }
        return self._slow

    def _field_values(self) -> dict[str, int | float]:
        now_s = self._monotonic_s()
        if now_s - self._fields_at >= RETRY_SECONDS:
            self._fields, self._fields_at = Fields(FIELDS), now_s
        found: dict[str, int | float] = {}
        refused: set[str] = set()
        for name, code, value in self.questions.ask_fields(self._fields, self.handle):
            if value is not None:
                found[name] = value
            elif code in _UNSUPPORTED:
                refused.add(name)
        if refused:
            self._fields = Fields([wanted for wanted in self._fields.wanted if wanted[2] not in refused])
            self._fields_at = now_s
        return found

    def facts(self) -> Mapping[tuple[int | None, str], str]:
        """Return the device's configuration facts."""
        handle, ask = self.handle, self.questions.ask
        limit = _scaled(ask("PowerManagementLimit", handle), 1000)
        mig = ask("MigMode", handle)
        mode = self._slow.get("ecc_mode")
        persistence = ask("PersistenceMode", handle)
        found = {
            "vbios": words(ask("VbiosVersion", handle)),
            "ecc_mode": mode if isinstance(mode, str) else None,
            "power_limit": None if limit is None else f"{limit:g} W",
            "mig_mode": None if mig is None else ("enabled" if mig[0] else "disabled"),
            "persistence_mode": None if persistence is None else ("enabled" if persistence else "disabled"),
        }
        return {(self.index, name): value for name, value in found.items() if value}


def words(answer: Any) -> str | None:
    """Return a text answer of NVML (bytes in old releases), None when empty, unknown or not printable."""
    if isinstance(answer, bytes):
        answer = answer.decode("utf-8", "replace")
    return answer if isinstance(answer, str) and answer.strip() and answer.isprintable() else None


def _columns(fields: Mapping[str, int | float]) -> dict[str, Value]:
    get = fields.get
    thermal = _sum(get("sw_thermal_ns"), get("hw_thermal_ns"))
    return {
        # Boards without a memory sensor answer 0.
        "mem_temp_c": get("mem_temp") or None,
        "power_w": _scaled(get("power_average_mw"), 1000),
        "power_instant_w": _scaled(get("power_instant_mw"), 1000),
        "energy_j_total": _scaled(get("energy_mj"), 1000),
        "ecc_corrected_total": _whole(get("ecc_sbe")),
        "ecc_uncorrected_total": _whole(get("ecc_dbe")),
        "ecc_corrected_lifetime_total": _whole(get("ecc_sbe_life")),
        "ecc_uncorrected_lifetime_total": _whole(get("ecc_dbe_life")),
        "retired_pages_total": _sum(get("retired_sbe"), get("retired_dbe")),
        "remapped_rows_total": _sum(get("remapped_cor"), get("remapped_unc")),
        "remap_pending": _flag(get("remap_pending")),
        "remap_failure": _flag(get("remap_failure")),
        "throttle_thermal_us_total": _microseconds(thermal if thermal is not None else get("thermal_policy_ns")),
        "throttle_power_us_total": _microseconds(_sum(get("power_cap_ns"), get("power_brake_ns"))),
        "pcie_replay_total": _whole(get("pcie_replay")),
        "pcie_tx_bytes_total": _whole(get("pcie_tx_bytes")),
        "pcie_rx_bytes_total": _whole(get("pcie_rx_bytes")),
        "link_tx_bytes_total": _bytes(get("link_tx_kib")),
        "link_rx_bytes_total": _bytes(get("link_rx_kib")),
        "link_errors_total": _sum(get("link_crc_flit"), get("link_crc_data"), get("link_replay"), get("link_recovery")),
    }


def _scaled(value: Any, divisor: float) -> float | None:
    return value / divisor if isinstance(value, (int, float)) else None


def _whole(value: int | float | None) -> int | None:
    return int(value) if value is not None and value >= 0 else None


def _sum(*values: int | float | None) -> int | None:
    """Return the sum of what is known, None when nothing is."""
    total: int | None = None
    for value in values:
        if value is not None:
            total = int(value) if total is None else total + int(value)
    return total


def _microseconds(nanoseconds: int | float | None) -> int | None:
    return None if nanoseconds is None else int(nanoseconds) // 1000


def _bytes(kib: int | float | None) -> int | None:
    return None if kib is None else int(kib) * 1024


def _flag(value: int | float | None) -> bool | None:
    return None if value is None else bool(value)

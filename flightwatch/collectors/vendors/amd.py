"""AMD devices: amdsmi where its Python library and driver are, else the amd-smi or rocm-smi command."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.vendors.library import LibraryCollector
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row

if TYPE_CHECKING:
    from flightwatch.collectors.vendors.amd_device import AmdDevice


#: Processes of devices are asked for this often.
PROCESS_SECONDS = 10.0


def load_amdsmi() -> Any:
    """Return the amdsmi module. Raises NoData when it, or the library below it, is not installed."""
    try:
        return importlib.import_module("amdsmi")
    except ImportError as error:
        raise NoData("the Python package amdsmi is not installed (pip install 'flightwatch[amd]')") from error
    except (OSError, KeyError, AttributeError) as error:
        # The package is there and libamd_smi.so is not, or is of another release.
        raise NoData(f"amdsmi finds no matching driver library: {error}") from error


class AmdCollector(LibraryCollector):
    """All AMD devices through amdsmi (written against its release 7 interface), else `amd-smi` or `rocm-smi`."""

    name = "amd"
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = (
        (("amd-smi", "metric", "--json"), "amd_smi:AmdSmiJson"),
        (("rocm-smi", "-a", "--json"), "rocm:RocmSmi"),
    )

    def __init__(
        self,
        environment: Environment,
        load: Callable[[], Any] = load_amdsmi,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(environment, load, monotonic_s)
        self._handles: list[Any] = []
        self._devices: dict[int, AmdDevice] = {}
        self._processes_at_s = float("-inf")

    def start(self, library: Any) -> None:
        """Start amdsmi and find devices."""
        self._devices = {}
        try:
            library.amdsmi_init()
            self._handles = list(library.amdsmi_get_processor_handles())
        except library.AmdSmiException as error:
            raise NoData(f"amdsmi does not start: {error}") from error
        if not self._handles:
            self.stop(library)
            raise NoData("amdsmi finds no device")

    def stop(self, library: Any) -> None:
        """Let go of amdsmi."""
        self._environment.devices.offer_processes(self.name, {})
        try:
            library.amdsmi_shut_down()
        except library.AmdSmiException:
            # The driver is already gone: there is nothing to let go of.
            return

    def read(self, library: Any, now_ms: int) -> Iterator[Row | Note]:
        """Yield the rows of every device."""
        # Rows are built with the capture parsers' tools, which an agent without such a device need not load.
        from flightwatch.collectors.vendors.amd_device import AmdDevice

        for index, handle in enumerate(self._handles):
            device = self._devices.get(index)
            if device is None:
                device = self._devices[index] = AmdDevice(library, index, handle)
            yield from device.rows(now_ms)
        if self._monotonic_s() - self._processes_at_s >= PROCESS_SECONDS:
            self._processes_at_s = self._monotonic_s()
            found: dict[int, list[int]] = {}
            for index, device in self._devices.items():
                for pid in device.processes():
                    found.setdefault(pid, []).append(index)
            self._environment.devices.offer_processes(self.name, found)

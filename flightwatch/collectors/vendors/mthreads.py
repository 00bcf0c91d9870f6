"""Moore Threads devices: mthreads-ml-py (module `pymtml`) where it is installed, else mthreads-gmi.

The distribution is called mthreads-ml-py. A distribution that is *named* pymtml is a stranger's.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.vendors.library import LibraryCollector
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row


def load_mtml() -> Any:
    """Return the module of mthreads-ml-py. Raises NoData when it is absent or not Moore Threads' own."""
    absent = NoData("the Python package mthreads-ml-py is not installed (pip install 'flightwatch[mthreads]')")
    # Asking for the distribution costs 1.4 MB, so the module is looked for first.
    if importlib.util.find_spec("pymtml") is None:
        raise absent
    try:
        from importlib.metadata import PackageNotFoundError, version

        version("mthreads-ml-py")
        return importlib.import_module("pymtml")
    except (ImportError, PackageNotFoundError) as error:
        raise absent from error


class MthreadsCollector(LibraryCollector):
    """All Moore Threads devices through MTML, else `mthreads-gmi`."""

    name = "mthreads"
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = ((("mthreads-gmi",), "mthreads:MthreadsGmi"),)

    def __init__(
        self,
        environment: Environment,
        load: Callable[[], Any] = load_mtml,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(environment, load, monotonic_s)
        self._devices: list[tuple[Any, Any]] = []

    def start(self, library: Any) -> None:
        """Start MTML and open the devices."""
        try:
            library.mtmlLibraryInit()
            devices = [library.mtmlLibraryInitDeviceByIndex(i) for i in range(library.mtmlLibraryCountDevice())]
            self._devices = [(device, library.mtmlDeviceInitMemory(device)) for device in devices]
        except library.MTMLError as error:
            raise NoData(f"MTML does not start: {error}") from error
        except OSError as error:
            raise NoData(f"MTML's driver library is absent: {error}") from error
        if not self._devices:
            self.stop(library)
            raise NoData("MTML finds no device")

    def stop(self, library: Any) -> None:
        """Let go of MTML."""
        try:
            library.mtmlLibraryShutDown()
        except library.MTMLError:
            # The driver is already gone: there is nothing to let go of.
            return

    def read(self, library: Any, now_ms: int) -> Iterator[Row | Note]:
        """Yield the rows of every device."""
        # Rows are built with the capture parsers' tools, which an agent without such a device need not load.
        from flightwatch.collectors.vendors.mthreads_device import MthreadsDevice

        for index, (device, memory) in enumerate(self._devices):
            yield from MthreadsDevice(library, index, device, memory).rows(now_ms)

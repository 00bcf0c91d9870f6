"""What collectors of devices tell the others: which index stands at which PCI address, which processes run on it.

The kernel names devices by address, the driver's tools by index. An address that nobody told about gives
no index: the event then has the address alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flightwatch.core.protocols import Row, Value


class DeviceBoard:
    """Where collectors leave the addresses and processes of their devices."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, int]] = {}
        self._processes: dict[str, Mapping[int, list[int]]] = {}

    def offer(self, source: str, addresses: Mapping[str, int]) -> None:
        """Replace what `source` said: PCI address, in any spelling, to device index."""
        self._parts[source] = {_place(address): index for address, index in addresses.items() if address}

    def learn(self, source: str, values: Mapping[str, Value]) -> None:
        """Take one device's address from its inventory row, where it has one."""
        device, attrs = values.get("device"), values.get("attrs")
        address = attrs.get("pci_bus_id") if isinstance(attrs, Mapping) else None
        if isinstance(device, int) and isinstance(address, str) and address:
            self._parts.setdefault(source, {})[_place(address)] = device

    def offer_processes(self, source: str, processes: Mapping[int, list[int]]) -> None:
        """Replace what `source` said: process id to the indices of the devices it runs on."""
        self._processes[source] = processes

    def processes(self) -> dict[int, list[int]]:
        """Return the processes of all sources."""
        merged: dict[int, list[int]] = {}
        for part in list(self._processes.values()):
            for pid, devices in part.items():
                merged.setdefault(pid, []).extend(devices)
        return merged

    def index_of(self, address: str) -> int | None:
        """Return the index at an address, None when it is unknown or two sources disagree."""
        place = _place(address)
        found = {part[place] for part in list(self._parts.values()) if place in part}
        return found.pop() if len(found) == 1 else None

    def fill(self, rows: Iterable[Row]) -> None:
        """Set the device of events that name an address and no index."""
        for row in rows:
            attrs = row.values.get("attrs")
            if row.table == "events" and row.values.get("device") is None and isinstance(attrs, Mapping):
                address = attrs.get("pci_bus_id")
                index = self.index_of(address) if isinstance(address, str) and address else None
                if index is not None:
                    row.values["device"] = index


def _place(address: str) -> str:
    """ "00000000:86:00.0", "0000:86:00" and "86:00.0" are the same place."""
    parts = address.strip().lower().split(".")[0].split(":")
    domain = parts[0].lstrip("0") if len(parts) > 2 else ""
    return ":".join([domain, *parts[-2:]])

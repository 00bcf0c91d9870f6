"""What an event is about: a PCI address where one is known, else an index, else a process.

One report may name a device by its address in one row and by its index in the next; both are one place.
"""

from __future__ import annotations

from collections.abc import Mapping


def address(pci: str) -> str:
    """Write a PCI address in one way: "00000000:86:00.0", "0000:86:00" and "86:00.0" are the same place."""
    parts = pci.lower().split(".")[0].split(":")
    domain = parts[0].lstrip("0") if len(parts) > 2 else ""
    return ":".join([domain, *parts[-2:]])


class Places:
    """Names the place of each event, with the addresses that other events give for an index."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[str, int], set[str]] = {}

    def learn(self, machine: str, index: int | None, pci: str) -> None:
        """Remember that an index and an address are one device.

        Parameters
        ----------
        machine: node, or the capture where no node is known: an index means nothing elsewhere.
        """
        if index is not None and pci:
            self._addresses.setdefault((machine, index), set()).add(address(pci))

    def name(self, machine: str, index: int | None, pci: str, family: str, attrs: Mapping[str, str]) -> str:
        """Return the place; events are grouped when it is equal, or empty on one side.

        An index with several addresses (two vendors' tools in one bundle) stays an index.
        """
        if pci:
            return address(pci)
        if index is not None:
            known = self._addresses.get((machine, index), set())
            return next(iter(known)) if len(known) == 1 else f"#{index}"
        if family in ("segfault", "stall", "oom"):
            return f"process {attrs.get('process', '')}/{attrs.get('pid', '')}"
        return ""

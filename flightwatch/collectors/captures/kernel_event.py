"""What kernel-line matchers share: the event they make and the memory they keep between lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from flightwatch.core.vocabulary import EventSeverity

#: Longest message text kept in an event.
MESSAGE_LIMIT = 2000
#: Devices, uuids and links remembered per capture.
STATE_LIMIT = 4096

PCI = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"


@dataclass(slots=True)
class KernelEvent:
    """One event found in a kernel line; later lines may still add to `attrs` while it is open.

    Attributes
    ----------
    code: "xid:79", "ras:ue", "pcie:aer_correctable", ...
    message: the line without its prefix.
    attrs: parsed details as text; `pci_bus_id` as the line writes it, lower case.
    device: device index where the line names one.
    """

    code: str
    severity: EventSeverity
    message: str
    attrs: dict[str, str] = field(default_factory=dict)
    device: int | None = None


@dataclass(slots=True)
class KernelState:
    """What earlier lines of one machine's log said; bounded.

    Attributes
    ----------
    device_of: PCI address to device index.
    uuid_of: PCI address to GPU uuid.
    links_up: network and RDMA functions that were seen with a link.
    rejected: why the line in hand was refused by a matcher, for a note.
    """

    device_of: dict[str, int] = field(default_factory=dict)
    uuid_of: dict[str, str] = field(default_factory=dict)
    links_up: set[str] = field(default_factory=set)
    rejected: str | None = None

    def learn_device(self, pci: str, device: int) -> None:
        """Remember the index of a device."""
        if len(self.device_of) < STATE_LIMIT:
            self.device_of[pci] = device

    def learn_link(self, name: str) -> None:
        """Remember that a link was up."""
        if len(self.links_up) < STATE_LIMIT:
            self.links_up.add(name)


class Matcher(Protocol):
    """Recognises one family of kernel messages. One instance reads one log in order."""

    #: Alternatives of a regular expression; a line without any of them is never offered.
    TRIGGER: str

    def match(self, message: str, state: KernelState) -> KernelEvent | bool | None:
        """Return an event, True when the line belonged to an earlier event, or None."""


def words(text: str) -> str:
    """Cut a message to its limit and drop trailing space."""
    return text[:MESSAGE_LIMIT].strip()


def first_group(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the first group of the first match, None when there is none."""
    match = pattern.search(text)
    return match[1] if match else None

"""Which addresses may be called: everything but this machine, the link, and clouds' metadata services."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

from flightwatch.core.errors import ConfigError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Metadata and host services of clouds that are not link-local: AWS (IPv6), Alibaba, Oracle, Azure.
_METADATA = tuple(
    ipaddress.ip_address(text) for text in ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def plain_address(text: str) -> Address:
    """Return the address that is really meant: IPv4 inside IPv6 (mapped, 6to4, NAT64) is unwrapped."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def is_guarded(text: str) -> bool:
    """Say whether an address is called only when it is listed.

    Private networks are not guarded: schedulers and chat servers of a cluster live there.
    """
    address = plain_address(text)
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        or address.is_reserved
        or address in _METADATA
        # 0.0.0.0/8 reaches this machine on Linux.
        or (address.version == 4 and int(address) >> 24 == 0)
    )


class AllowedAddresses:
    """The list `outgoing.allowed_addresses`: ADDRESS, NETWORK/BITS, or either with :PORT ([v6]:PORT)."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Read the entries. Raises ConfigError: one is no address or network."""
        self._entries: list[tuple[Network, int | None]] = [_entry(text) for text in entries]

    def has(self, address: str, port: int) -> bool:
        """Say whether the address and port are listed."""
        plain = plain_address(address)
        return any(
            plain.version == network.version and plain in network and only in (None, port)
            for network, only in self._entries
        )


def _entry(text: str) -> tuple[Network, int | None]:
    host, port = text.strip(), None
    if host.startswith("[") and "]" in host:
        host, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":") or None
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    try:
        return ipaddress.ip_network(host, strict=False), int(port) if port else None
    except ValueError as error:
        raise ConfigError(
            f"outgoing.allowed_addresses: {text!r} is not an address, a network or ADDRESS:PORT"
        ) from error

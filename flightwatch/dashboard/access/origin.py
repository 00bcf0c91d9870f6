"""Which site a browser's request comes from, and through which proxy."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from flightwatch.core.errors import ConfigError
from flightwatch.dashboard.access.denied import Denied

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Headers that only a proxy adds.
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")


def networks(addresses: Sequence[str]) -> tuple[Network, ...]:
    """Read addresses and networks. Raises ConfigError when one is neither."""
    try:
        return tuple(ipaddress.ip_network(address, strict=False) for address in addresses)
    except ValueError as error:
        raise ConfigError(f"access.proxy_addresses: {error}") from error


def is_listed(address: str | None, listed: Sequence[Network]) -> bool:
    """Say whether an address is in one of the networks; a unix socket has none."""
    if address is None:
        return False
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return any((mapped or found) in network for network in listed)


def client_address(connection: HTTPConnection, proxies: Sequence[Network]) -> str | None:
    """Return the address of the client: of the TCP peer, or what a listed proxy says it forwards for.

    X-Forwarded-For grows to the right; the rightmost address that is no listed proxy is the one seen by ours.
    """
    peer = connection.client.host if connection.client else None
    if not is_listed(peer, proxies):
        return peer
    chain = [part.strip() for value in connection.headers.getlist("x-forwarded-for") for part in value.split(",")]
    for address in reversed(chain):
        if not is_listed(address, proxies):
            try:
                return str(ipaddress.ip_address(address))
            except ValueError:
                return peer
    return peer


def is_secure(connection: HTTPConnection, proxies: Sequence[Network], public_url: str) -> bool:
    """Say whether the browser speaks TLS, to us or to a listed proxy."""
    if public_url.startswith("https://") or connection.url.scheme in ("https", "wss"):
        return True
    peer = connection.client.host if connection.client else None
    return is_listed(peer, proxies) and connection.headers.get("x-forwarded-proto", "").strip() == "https"


def refuse_other_sites(connection: HTTPConnection, public_url: str) -> None:
    """Refuse what another site's page makes a browser send.

    Browsers name the site in Origin on every write and every websocket, and in Sec-Fetch-Site where they know it.
    Programs send neither.

    Raises
    ------
    Denied: 403, the request comes from a page of another site.
    """
    fetched_by = connection.headers.get("sec-fetch-site")
    if fetched_by is not None and fetched_by not in ("same-origin", "none"):
        raise Denied(403, "cross_origin", "this request was sent by a page of another site", "Sec-Fetch-Site")
    origins = connection.headers.getlist("origin")
    own = {host.lower() for host in (connection.headers.get("host", ""), urlsplit(public_url).netloc) if host}
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or parts.netloc.lower() not in own:
            raise Denied(403, "cross_origin", "this request was sent by a page of another site", "Origin")


def refuse_other_hosts(connection: HTTPConnection, public_url: str) -> None:
    """Refuse a browser's request for another name than ours: a stranger's name may point here (DNS rebinding).

    Programs that send a token are let through: they call by whatever name the network gives.

    Raises
    ------
    Denied: 400, the Host header names another machine.
    """
    own = urlsplit(public_url)
    if not own.hostname or "authorization" in connection.headers:
        return
    host = urlsplit(f"//{connection.headers.get('host', '')}").hostname
    if host not in (own.hostname, "localhost", "127.0.0.1", "::1"):
        raise Denied(400, "unknown_host", f"this is {own.hostname}, whatever the address says", "Host")


def is_from_browser(connection: HTTPConnection) -> bool:
    """Say whether the request has marks that only browsers leave."""
    return any(name in connection.headers for name in ("origin", "sec-fetch-site", "cookie", "referer"))

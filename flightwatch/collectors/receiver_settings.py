"""The section `[receiver]`: what the agent takes from training processes."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting

#: Where probes look unless told otherwise.
DEFAULT_SOCKET = "/run/flightwatch/probe.sock"


@dataclass(frozen=True)
class ReceiverSettings:
    """Socket and limits of the probes' receiver."""

    socket: str = setting(
        "",
        "unix socket that training processes send to; empty: FLIGHTWATCH_SOCKET, then probe.sock in a data folder of"
        " one's own, then /run/flightwatch/probe.sock",
    )
    bytes_per_second: float = setting(2_000_000.0, "what one user's processes may send", minimum=1000.0)
    datagrams_per_second: float = setting(500.0, "datagrams one user's processes may send", minimum=1.0)
    names: int = setting(2000, "distinct names (jobs, ops, groups, counters) one user may bring in", minimum=10)
    datagrams_total_per_second: float = setting(
        2000.0, "datagrams taken off the socket; beyond, senders find it full", minimum=10.0
    )
    ring_bytes: int = setting(
        256_000_000, "per-op detail kept on this node, sent around findings on command; 0: none", minimum=0
    )
    ring_seconds: float = setting(1800.0, "age after which per-op detail is removed from this node", minimum=60.0)


def socket_path(settings: ReceiverSettings, data_dir: str, default_data_dir: str, given: str) -> str:
    """Return the path of the socket.

    Parameters
    ----------
    given: value of FLIGHTWATCH_SOCKET, "" when it is not set.
    data_dir: flightwatch.data_dir; when it is not the default, several installations may share the machine and
        each has its own socket in its own folder.
    """
    if settings.socket or given:
        return settings.socket or given
    return DEFAULT_SOCKET if data_dir == default_data_dir else f"{data_dir}/probe.sock"

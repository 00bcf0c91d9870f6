"""Pause, FEC and error counters and optics of RDMA ports through ethtool, at the interval of commands."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from flightwatch.collectors.environment import Environment
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import CaptureContext, Row, Value

_ROOT = "sys/class/infiniband"
#: Optics change slowly, and reading a module's memory holds its bus: every so many rounds.
OPTICS_EVERY = 10
#: Columns that sysfs already gives, from the same hardware, every few seconds.
_FROM_SYSFS = ("link_layer", "state", "rate_gbps", "rx_bytes_total", "tx_bytes_total", "rx_packets_total",
               "tx_packets_total", "ts", "node", "hca", "port")  # fmt: skip


class EthtoolCollector:
    """Runs `ethtool -S` on the network interface of every RDMA adapter, `ethtool -m` on every tenth round.

    The counters travel in the port's next row from sysfs (`environment.ports`), so that one port stays one
    series.
    """

    name = "ethtool"
    own_thread = True

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.command_interval_seconds
        self._environment = environment
        self._rounds = 0

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Ask every interface once; returns the optical lanes, and offers the port's counters.

        Raises
        ------
        NoData: no RDMA adapter with a network interface, ethtool not installed, or a recorded tree.
        TransientError: ethtool failed on every interface.
        """
        if not self._environment.live:
            raise NoData("a recorded tree runs no command")
        interfaces = self._interfaces()
        if not interfaces:
            raise NoData("no RDMA adapter with a network interface")
        options = ("-S", "-m") if self._rounds % OPTICS_EVERY == 0 else ("-S",)
        self._rounds += 1
        rows: list[Row] = []
        failures: list[str] = []
        for hca, interface in interfaces:
            for option in options:
                try:
                    rows += self._ask(hca, interface, option, now_ms)
                except TransientError as error:
                    failures.append(str(error))
        if len(failures) == len(interfaces) * len(options):
            raise TransientError(failures[0])
        return rows

    def _interfaces(self) -> list[tuple[str, str]]:
        tree = self._environment.tree
        return [(hca, name) for hca in tree.listdir(_ROOT) for name in tree.listdir(f"{_ROOT}/{hca}/device/net")[:1]]

    def _ask(self, hca: str, interface: str, option: str, now_ms: int) -> Sequence[Row]:
        from flightwatch.collectors.captures.ethtool import EthtoolParser

        output = self._environment.run_command(
            ("ethtool", option, interface), self._environment.settings.command_timeout_seconds
        )
        rows: list[Row] = []
        for item in EthtoolParser().parse(io.BytesIO(output), CaptureContext(hca, now_ms)):
            if not isinstance(item, Row):
                continue
            if item.table == "port_samples":
                part: dict[str, Value] = {
                    name: value for name, value in item.values.items() if value is not None and name not in _FROM_SYSFS
                }
                self._environment.ports.offer(hca, 1, now_ms, part)
            else:
                item.values["chip"] = f"optics.{hca}"
                rows.append(item)
        return rows

"""From a URL to a bus; the Kafka client is imported only for a Kafka URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from flightwatch.core.clock import Clock
from flightwatch.core.errors import ConfigError
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.bus.settings import BusSettings


def open_bus(url: str, settings: BusSettings | None = None, clock: Clock | None = None) -> Bus:
    """Open the bus that a URL names.

    Parameters
    ----------
    url: `sqlite:///ABSOLUTE/FOLDER` or `kafka://HOST:PORT[,HOST:PORT...]`.

    Raises
    ------
    ConfigError: another URL, or a folder that cannot be used.
    """
    chosen = settings or BusSettings()
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        folder = "/" + unquote(urlsplit(url).path).lstrip("/")
        if not folder.startswith("/") or folder == "/":
            raise ConfigError(f"flightwatch.bus = {url!r}: write sqlite:///ABSOLUTE/FOLDER")
        from flightwatch.pipeline.bus.local import LocalBus

        return LocalBus(Path(folder), chosen, clock)
    if scheme == "kafka":
        servers = [server.strip() for server in rest.strip("/").split(",") if server.strip()]
        if not servers or any("@" in server for server in servers):
            raise ConfigError(
                "flightwatch.bus: write kafka://HOST:PORT,HOST:PORT; user and password are bus.kafka_username and"
                " FLIGHTWATCH_BUS_KAFKA_PASSWORD"
            )
        from flightwatch.pipeline.bus.kafka import KafkaBus

        return KafkaBus(servers, chosen, clock)
    raise ConfigError(f"flightwatch.bus = {url!r}: known are sqlite:///FOLDER and kafka://HOST:PORT")

"""The section `[flightwatch]`: what every process needs to know."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class CommonSettings:
    """Names and addresses shared by all processes."""

    cluster: str = setting("default", "name of this cluster, stored with every row")
    node: str = setting("", "name of this node; empty: the host name")
    data_dir: str = setting("/var/lib/flightwatch", "folder of everything a single-machine installation stores")
    bus: str = setting("", "sqlite:///FOLDER or kafka://HOST:PORT,HOST:PORT; empty: sqlite in data_dir")
    store: str = setting("", "chdb:///FOLDER or clickhouse://USER@HOST:PORT/flightwatch; empty: chdb in data_dir")
    control: str = setting("", "sqlite:///FILE or postgresql://USER@HOST/DB; empty: sqlite in data_dir")
    log_level: str = setting("info", "debug, info, warning or error")
    log_format: str = setting("text", "text or json")

    @property
    def node_name(self) -> str:
        """Name of this node."""
        return self.node or socket.gethostname()

    @property
    def bus_url(self) -> str:
        """Bus URL with the default filled in."""
        return self.bus or local_url("sqlite", self.data_dir, "bus")

    @property
    def store_url(self) -> str:
        """Store URL with the default filled in."""
        return self.store or local_url("chdb", self.data_dir, "store")

    @property
    def control_url(self) -> str:
        """Control database URL with the default filled in."""
        return self.control or local_url("sqlite", self.data_dir, "control.db")


def local_url(scheme: str, *parts: str) -> str:
    """Return the URL of a path on this machine; relative to the working folder, with odd characters escaped."""
    return f"{scheme}:///{quote(os.path.abspath(os.path.join(*parts)).lstrip('/'))}"


def local_path(url: str) -> Path:
    """Return the path that `local_url` was given."""
    return Path("/" + unquote(urlsplit(url).path).lstrip("/"))

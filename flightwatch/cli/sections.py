"""All sections of the configuration file: name and the settings class its part owns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.core.settings import Loaded, load

#: Sections an agent reads; importing these modules must stay light.
AGENT_SECTIONS: dict[str, type[Any]] = {"flightwatch": CommonSettings}


def all_sections() -> dict[str, type[Any]]:
    """Return every section; imports the parts that own them."""
    from flightwatch.pipeline.store.settings import StoreSettings

    return dict(AGENT_SECTIONS) | {"store": StoreSettings}


def config_file(given: str | None) -> Path | None:
    """Return the file to read: the argument, FLIGHTWATCH_CONFIG, or /etc/flightwatch/flightwatch.toml if it exists."""
    if given or os.environ.get("FLIGHTWATCH_CONFIG"):
        return Path(given or os.environ["FLIGHTWATCH_CONFIG"])
    default = Path("/etc/flightwatch/flightwatch.toml")
    return default if default.exists() else None


def load_settings(given: str | None) -> Loaded:
    """Read every section from the chosen file and the environment."""
    return load(all_sections(), config_file(given))

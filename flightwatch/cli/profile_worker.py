"""The control server of profiles inside `flightwatch up` and `flightwatch pipeline`."""

from __future__ import annotations

import os
from pathlib import Path

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.instance import Worker
from flightwatch.core.clock import SystemClock
from flightwatch.core.ed25519 import SigningKey
from flightwatch.core.settings import Loaded
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.profiles.server import ProfileServer, Verify
from flightwatch.pipeline.profiles.settings import ProfilesSettings
from flightwatch.pipeline.store.client import Store

KEYS_VARIABLE = "FLIGHTWATCH_AGENT_CONTROL_KEYS"


def traces_folder(settings: Loaded, common: CommonSettings) -> Path:
    """Return the folder in which traces are kept."""
    return Path(settings.section(ProfilesSettings).folder or os.path.join(common.data_dir, "profiles"))


def profile_worker(
    settings: Loaded, common: CommonSettings, key: SigningKey, bus: Bus, control: Control, store: Store, verify: Verify
) -> Worker:
    """Return the worker that serves profile requests; not started."""
    server = ProfileServer(
        bus,
        control,
        store,
        key.sign,
        traces_folder(settings, common),
        settings.section(ProfilesSettings),
        SystemClock(),
        cluster=common.cluster,
        verify=verify,
    )
    return Worker("profiles", server.run)


def keys_of_agent(given: tuple[str, ...], key: SigningKey) -> dict[str, str]:
    """Return the environment that makes an agent obey this server besides those it obeys already."""
    return {KEYS_VARIABLE: ",".join(dict.fromkeys((*given, key.public_key.hex())))}

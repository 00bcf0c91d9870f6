"""All sections of the configuration file: name and the settings class its part owns."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.collectors.profiler.settings import ProfilerSettings
from flightwatch.collectors.receiver_settings import ReceiverSettings
from flightwatch.collectors.redfish_settings import RedfishSettings
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.training_micro_settings import MicroTraceSettings
from flightwatch.core.settings import Loaded, load
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.spool import SpoolSettings

#: Sections an agent reads; importing these modules must stay light.
AGENT_SECTIONS: dict[str, type[Any]] = {
    "flightwatch": CommonSettings,
    "agent": AgentSettings,
    "redfish": RedfishSettings,
    "receiver": ReceiverSettings,
    "profiler": ProfilerSettings,
    "micro_traces": MicroTraceSettings,
    "bus": BusSettings,
    "spool": SpoolSettings,
}
#: Sections that an agent passes over: name to module and class, imported only by the processes that read them.
SERVER_SECTIONS: dict[str, str] = {
    "store": "flightwatch.pipeline.store.settings:StoreSettings",
    "control": "flightwatch.pipeline.control.settings:ControlSettings",
    "ingest": "flightwatch.pipeline.ingest.settings:IngestSettings",
    "detect": "flightwatch.pipeline.detection.settings:DetectSettings",
    "profiles": "flightwatch.pipeline.profiles.settings:ProfilesSettings",
    "incidents": "flightwatch.incidents.settings:IncidentSettings",
    "access": "flightwatch.dashboard.access.settings:AccessSettings",
    "console": "flightwatch.dashboard.settings:ConsoleSettings",
    "actions": "flightwatch.incidents.action_settings:ActionSettings",
    "outgoing": "flightwatch.incidents.outgoing_settings:OutgoingSettings",
    "alerts": "flightwatch.incidents.alert_settings:AlertSettings",
    "routes": "flightwatch.incidents.alert_settings:RouteSettings",
    "channels": "flightwatch.incidents.alert_settings:ChannelSettings",
}


def all_sections() -> dict[str, type[Any]]:
    """Return every section; imports the parts that own them."""
    sections = dict(AGENT_SECTIONS)
    for name, target in SERVER_SECTIONS.items():
        module, _, class_name = target.partition(":")
        sections[name] = getattr(importlib.import_module(module), class_name)
    return sections


def config_file(given: str | None) -> Path | None:
    """Return the file to read: the argument, FLIGHTWATCH_CONFIG, or /etc/flightwatch/flightwatch.toml if it exists."""
    if given or os.environ.get("FLIGHTWATCH_CONFIG"):
        return Path(given or os.environ["FLIGHTWATCH_CONFIG"])
    default = Path("/etc/flightwatch/flightwatch.toml")
    return default if default.exists() else None


def load_settings(given: str | None) -> Loaded:
    """Read every section from the chosen file and the environment."""
    return load(all_sections(), config_file(given))


def load_agent_settings(given: str | None) -> Loaded:
    """Read the sections of an agent; those of other processes may stand in the same file."""
    return load(AGENT_SECTIONS, config_file(given), elsewhere=SERVER_SECTIONS)

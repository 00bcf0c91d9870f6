"""`flightwatch config check|init`."""

from __future__ import annotations

import argparse
from urllib.parse import urlsplit

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.sections import all_sections, config_file
from flightwatch.core.clock import SystemClock
from flightwatch.core.errors import ConfigError
from flightwatch.core.settings import Loaded, load, template
from flightwatch.core.vocabulary import ExitCode
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.alert_settings import ChannelSettings, RouteSettings

HELP = "Check the configuration, or write a commented file with every key at its default."
EPILOG = "example:\n  flightwatch config init > flightwatch.toml\n  flightwatch config check --config flightwatch.toml"

#: What the three URLs may begin with.
_SCHEMES = {"bus": ("sqlite", "kafka"), "store": ("chdb", "clickhouse"), "control": ("sqlite", "postgresql")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("verb", choices=("check", "init"), help="check: print every value and its origin; init: a file")
    parser.add_argument("--config", help="file to check (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Print the file or the values."""
    if arguments.verb == "init":
        print(template(all_sections()), end="")
        return ExitCode.DONE
    loaded = load(all_sections(), config_file(arguments.config))
    _verify(loaded)
    width = max(len(origin.path) for origin in loaded.origins)
    for origin in loaded.origins:
        value = ("(set)" if origin.value else "(not set)") if origin.secret else repr(origin.value)
        print(f"{origin.path:{width}} = {value}   # {origin.source}")
    return ExitCode.DONE


def _verify(loaded: Loaded) -> None:
    """Check what only the parts that use a setting know. Raises ConfigError, naming section and key."""
    common = loaded.section(CommonSettings)
    for key, url in (("bus", common.bus_url), ("store", common.store_url), ("control", common.control_url)):
        if url.partition("://")[0] not in _SCHEMES[key]:
            raise ConfigError(f"flightwatch.{key} = {_shown(url)!r}: known are {', '.join(_SCHEMES[key])}")
        for server in urlsplit(url).netloc.rpartition("@")[2].split(","):
            port = server.rpartition(":")[2] if ":" in server and not server.endswith("]") else ""
            if port and not (port.isdigit() and 0 < int(port) < 65_536):
                raise ConfigError(f"flightwatch.{key} = {_shown(url)!r}: {port} is not a port")
    channels, routes = loaded.named(ChannelSettings), loaded.named(RouteSettings)
    if channels or routes:
        # Only here: notifiers need the server's packages, and the other settings are checked without any.
        from flightwatch.cli.alert_parts import channels_of, routes_of

        routes_of(loaded, channels_of(loaded, SystemClock()))
    loaded.section(ActionSettings).checked()


def _shown(url: str) -> str:
    password = urlsplit(url).password
    return url.replace(password, "***") if password else url

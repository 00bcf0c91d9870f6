"""Channels to people as the configuration describes them, and the notifiers that serve them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from flightwatch.core.errors import ConfigError
from flightwatch.incidents.alert_settings import ChannelSettings
from flightwatch.incidents.contract import Disclosure, Notifier
from flightwatch.incidents.notifiers.registry import notifier
from flightwatch.incidents.outgoing import Outgoing

LANGUAGES = ("en", "zh")


@dataclass(frozen=True)
class Channel:
    """A channel that is ready: its settings, checked, and its notifier."""

    name: str
    settings: ChannelSettings
    notifier: Notifier
    zone: ZoneInfo
    disclosure: Disclosure

    @property
    def per_minute(self) -> float:
        """Messages a minute: what the settings allow, at most what the service takes."""
        own = self.settings.per_minute
        return min(own, self.notifier.per_minute) if own else self.notifier.per_minute


def build_channels(settings: Mapping[str, ChannelSettings], outgoing: Outgoing) -> dict[str, Channel]:
    """Make the channels that are enabled, by name.

    Raises
    ------
    ConfigError: a service is unknown, or a setting of a channel is wrong or missing; section and key are named.
    """
    channels = {}
    for name, one in settings.items():
        if one.enabled:
            channels[name] = build_channel(name, one, outgoing)
    return channels


def build_channel(name: str, settings: ChannelSettings, outgoing: Outgoing) -> Channel:
    """Make one channel; raises as `build_channels`."""
    if settings.language not in LANGUAGES:
        raise ConfigError(f"channels.{name}.language = {settings.language!r}: known are {', '.join(LANGUAGES)}")
    try:
        disclosure = Disclosure(settings.disclosure)
    except ValueError as error:
        known = ", ".join(level.value for level in Disclosure)
        raise ConfigError(f"channels.{name}.disclosure = {settings.disclosure!r}: known are {known}") from error
    return Channel(
        name, settings, notifier(name, settings, outgoing), zone(settings.time_zone, f"channels.{name}"), disclosure
    )


def zone(name: str, section: str) -> ZoneInfo:
    """Return a time zone. Raises ConfigError: there is none of that name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"{section}.time_zone = {name!r}: no such time zone; write e.g. Asia/Shanghai") from error

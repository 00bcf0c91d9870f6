"""Channels to people as the configuration describes them, and the notifiers that serve them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from flightwatch.core.errors import ConfigError
from flightwatch.core.settings import named_sections, setting
from flightwatch.incidents.contract import Disclosure, Notifier

if TYPE_CHECKING:  # settings are checked where no HTTP library is installed
    from flightwatch.incidents.outgoing import Outgoing

LANGUAGES = ("en", "zh")


@named_sections
@dataclass(frozen=True)
class ChannelSettings:
    """Section `[channels.NAME]`: one place where people read messages."""

    service: str = setting(
        "",
        "slack, feishu, dingtalk, wecom, teams, discord, telegram, pagerduty, opsgenie, alertmanager, email or webhook",
    )
    enabled: bool = setting(True, "send to this channel")
    url: str = setting("", "address of the service where it holds no secret; empty: the service's own")
    secret_url: str = setting("", "webhook address with a credential in it (most chat services)", secret=True)
    token: str = setting("", "bot token, routing key, API key, or secret of a Feishu app", secret=True)
    signing_secret: str = setting("", "key with which messages are signed", secret=True)
    user: str = setting("", "account of a mail server, or id of a Feishu app")
    password: str = setting("", "password of that account", secret=True)
    sender: str = setting("", "sender's mail address")
    to: tuple[str, ...] = setting((), "channel, chat or mail addresses, where the service needs one")
    mention: str = setting("", "put in front of P1 and P2 messages, in the service's own words, e.g. <!here>")
    language: str = setting("en", "en or zh")
    disclosure: str = setting(
        "standard", "minimal: no job, node or cause; standard: no loss values, stacks or module names; full: everything"
    )
    time_zone: str = setting("UTC", "zone of local times, e.g. Asia/Shanghai; UTC is always told too")
    per_minute: float = setting(0.0, "most messages a minute; 0: as the service allows", minimum=0.0)
    pictures: bool = setting(True, "send a picture of the evidence where the service takes one")
    buttons: bool = setting(
        False,
        "bots of slack, telegram, discord, feishu: acknowledge, approve, reject; the app's secret stands in [access]",
    )
    ca_file: str = setting("", "PEM file of certificate authorities to trust for this channel")


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
    from flightwatch.incidents.notifiers.registry import notifier

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

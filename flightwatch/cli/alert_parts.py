"""Channels, routes and the follower that tells people, from the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.core.clock import Clock
from flightwatch.core.settings import Loaded
from flightwatch.incidents.alert_settings import AlertSettings, ChannelSettings, RouteSettings
from flightwatch.incidents.channels import Channel, build_channels
from flightwatch.incidents.chart import EvidencePicture
from flightwatch.incidents.delivery import Alerting
from flightwatch.incidents.facts import FactReader
from flightwatch.incidents.heartbeat import Heartbeat
from flightwatch.incidents.messages import Messages
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from flightwatch.incidents.routes import Routes
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.profiles.records import Profiles
from flightwatch.pipeline.store.client import Store

#: A rank that its agent named so long ago can be profiled.
_SEEN_MS = 120_000


def channels_of(settings: Loaded, clock: Clock) -> dict[str, Channel]:
    """Return the enabled channels. Raises ConfigError: a channel's settings are wrong."""
    outgoing = Outgoing(settings.section(OutgoingSettings), clock)
    return build_channels(settings.named(ChannelSettings), outgoing)


def routes_of(settings: Loaded, channels: Mapping[str, Channel]) -> Routes:
    """Return the routes. Raises ConfigError: a route is wrong."""
    return Routes(settings.named(RouteSettings), channels)


def profilable(control: Control, clock: Clock) -> Callable[[str], bool]:
    """Return what says whether an agent saw ranks of a job in the last minutes."""
    profiles = Profiles(control)
    return lambda job: bool(profiles.targets(job, clock.now_ms() - _SEEN_MS))


def alerting(
    settings: Loaded, common: CommonSettings, control: Control, store: Store, clock: Clock,
    more: Sequence[Channel] = (),
) -> Alerting:  # fmt: skip
    """Return the follower; its threads begin with its first cycle.

    Parameters
    ----------
    more: channels beside those of the settings.

    Raises
    ------
    ConfigError: a channel, a route or the heartbeat's address is wrong.
    """
    channels = channels_of(settings, clock) | {channel.name: channel for channel in more}
    own = settings.section(AlertSettings)
    incidents = IncidentRecords(control)
    facts = FactReader(incidents, ActionRecords(control, common.cluster), store, own, clock, profilable(control, clock))
    picture = EvidencePicture(store, clock, own.facts_seconds)
    return Alerting(
        AlertRecords(control), incidents, channels, routes_of(settings, channels),
        Messages(incidents, facts, own, clock, common.cluster, picture), own, clock,
        Heartbeat(own, Outgoing(settings.section(OutgoingSettings), clock), clock),
    )  # fmt: skip

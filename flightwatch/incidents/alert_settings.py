"""The section `[alerts]`: when messages repeat, when they are told together, and where the heartbeat goes."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import named_sections, setting


@dataclass(frozen=True)
class AlertSettings:
    """What an operator may change about messages."""

    console_url: str = setting("", "address of the console as people reach it, for links; empty: no links")
    remind_p1_minutes: float = setting(
        15.0,
        "minutes after which an unacknowledged P1 is told again, then twice as long each time; 0: never",
        minimum=0,
    )
    remind_p2_minutes: float = setting(60.0, "the same for P2", minimum=0)
    burst: int = setting(
        5, "messages of their own that a channel gets in a minute; what is more is told together", minimum=1
    )
    together_seconds: float = setting(30.0, "time between messages that tell several incidents together", minimum=1)
    together_p1_seconds: float = setting(10.0, "the same when one of them is P1", minimum=1)
    give_up_hours: float = setting(24.0, "hours in which a P1 or P2 message is tried again", minimum=0.1)
    give_up_p3_hours: float = setting(4.0, "the same for lesser ones", minimum=0.1)
    dead_after_minutes: float = setting(
        3.0, "minutes of failures after which the other channels hear that a channel is dead", minimum=0.1
    )
    facts_seconds: float = setting(1.5, "longest time spent on collecting facts for one message", minimum=0.1)
    restart_minutes: float = setting(
        15.0, "minutes a job needs to start again, where its past starts do not tell", minimum=0
    )
    keep_days: float = setting(90.0, "days for which finished deliveries are kept", minimum=1)
    heartbeat_url: str = setting(
        "", "address of an outside dead-man's switch that is called while messages can be sent", secret=True
    )
    heartbeat_seconds: float = setting(60.0, "time between its calls", minimum=5)


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


@named_sections
@dataclass(frozen=True)
class RouteSettings:
    """Section `[routes.NAME]`: a rule; the first one that fits decides, in the order of the file."""

    match: dict[str, str] | None = setting(  # noqa: RUF009 (a field, not a call at run time)
        None, "field to value, all must fit; * stands for any characters, | between values means or"
    )
    severities: tuple[str, ...] = setting((), "P1, P2, P3, P4; empty: all")
    between: str = setting("", "HH:MM-HH:MM, over midnight too; empty: always")
    days: tuple[str, ...] = setting((), "mon, tue, ... sun; empty: every day")
    time_zone: str = setting("UTC", "zone of the times, e.g. Asia/Shanghai")
    channels: tuple[str, ...] = setting((), "channels that hear of it; empty: the console only")
    go_on: bool = setting(False, "look at the routes below too, and tell their channels as well")

"""All notifiers: service to class. A new one is one file here and one line below."""

from __future__ import annotations

from collections.abc import Callable

from flightwatch.core.errors import ConfigError
from flightwatch.incidents.alert_settings import ChannelSettings
from flightwatch.incidents.contract import Notifier
from flightwatch.incidents.notifiers.alertmanager import Alertmanager
from flightwatch.incidents.notifiers.dingtalk import DingTalk
from flightwatch.incidents.notifiers.discord import Discord
from flightwatch.incidents.notifiers.email import Email
from flightwatch.incidents.notifiers.feishu import Feishu
from flightwatch.incidents.notifiers.opsgenie import Opsgenie
from flightwatch.incidents.notifiers.pagerduty import PagerDuty
from flightwatch.incidents.notifiers.slack import Slack
from flightwatch.incidents.notifiers.teams import Teams
from flightwatch.incidents.notifiers.telegram import Telegram
from flightwatch.incidents.notifiers.webhook import Webhook
from flightwatch.incidents.notifiers.wecom import WeCom
from flightwatch.incidents.outgoing import Outgoing

NOTIFIERS: dict[str, Callable[[str, ChannelSettings, Outgoing], Notifier]] = {
    "slack": Slack,
    "feishu": Feishu,
    "dingtalk": DingTalk,
    "wecom": WeCom,
    "teams": Teams,
    "discord": Discord,
    "telegram": Telegram,
    "pagerduty": PagerDuty,
    "opsgenie": Opsgenie,
    "alertmanager": Alertmanager,
    "email": Email,
    "webhook": Webhook,
}
#: Another name of the same service.
_ALSO = {"lark": "feishu"}


def notifier(name: str, settings: ChannelSettings, outgoing: Outgoing) -> Notifier:
    """Make the notifier of a channel. Raises ConfigError: unknown service, or a setting is wrong or missing."""
    make = NOTIFIERS.get(_ALSO.get(settings.service, settings.service))
    if make is None:
        raise ConfigError(f"channels.{name}.service = {settings.service!r}: known are {', '.join(NOTIFIERS)}")
    return make(name, settings, outgoing)

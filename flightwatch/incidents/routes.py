"""Which channels hear of an incident: by its fields, its severity and the time of day."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

from flightwatch.core.errors import ConfigError
from flightwatch.core.incident import Incident
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.alert_settings import RouteSettings
from flightwatch.incidents.channels import Channel, zone

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_BETWEEN = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")
#: Fields of an incident that a route can match.
MATCHED = ("cluster", "kind", "class", "scope", "node", "job", "run", "tenant", "state", "blames_hardware")
#: Severities of a message about the platform itself ("a channel is dead") count as P3.
PLATFORM_SEVERITY = Severity.P3


class Routes:
    """Decides, by the routes or by the default where none fits.

    The default: P1 and P2 to every channel, P3 to channels that do not page, P4 and info to the console alone.
    """

    def __init__(self, settings: Mapping[str, RouteSettings], channels: Mapping[str, Channel]) -> None:
        """Check the routes. Raises ConfigError: a route names an unknown channel, field, severity, day or time."""
        self._routes = [_Route(name, one, channels) for name, one in settings.items()]
        self._all = tuple(channels)
        self._chats = tuple(name for name, channel in channels.items() if not channel.notifier.pages)

    def channels(self, incident: Incident, at_ms: int) -> tuple[str, ...]:
        """Return the channels that hear of an incident at a time, in the order of the configuration."""
        chosen: set[str] = set()
        decided = False
        for route in self._routes:
            if route.fits(incident, at_ms):
                decided = True
                chosen |= set(route.settings.channels)
                if not route.settings.go_on:
                    break
        if not decided:
            return self.default(incident.severity)
        return tuple(name for name in self._all if name in chosen)

    def default(self, severity: Severity) -> tuple[str, ...]:
        """Return the channels for a severity where no route fits."""
        if severity in (Severity.P1, Severity.P2):
            return self._all
        return self._chats if severity is Severity.P3 else ()


class _Route:
    def __init__(self, name: str, settings: RouteSettings, channels: Mapping[str, Channel]) -> None:
        where = f"routes.{name}"
        for channel in settings.channels:
            if channel not in channels:
                known = ", ".join(channels) or "none"
                raise ConfigError(f"{where}.channels: there is no enabled channel {channel!r}; known: {known}")
        for field in settings.match or {}:
            if field not in MATCHED:
                raise ConfigError(f"{where}.match: incidents have no field {field!r}; known: {', '.join(MATCHED)}")
        for severity in settings.severities:
            if severity not in [one.value for one in Severity]:
                raise ConfigError(f"{where}.severities: {severity!r} is none; known: P1, P2, P3, P4, info")
        for day in settings.days:
            if day not in _DAYS:
                raise ConfigError(f"{where}.days: {day!r} is no day; known: {', '.join(_DAYS)}")
        self.settings = settings
        self._zone: ZoneInfo = zone(settings.time_zone, where)
        self._from, self._to = _minutes(settings.between, where)

    def fits(self, incident: Incident, at_ms: int) -> bool:
        if self.settings.severities and incident.severity.value not in self.settings.severities:
            return False
        return self._at_this_time(at_ms) and all(
            _matches(pattern, _field(incident, field)) for field, pattern in (self.settings.match or {}).items()
        )

    def _at_this_time(self, at_ms: int) -> bool:
        local = datetime.fromtimestamp(at_ms / 1000, tz=UTC).astimezone(self._zone)
        minute = local.hour * 60 + local.minute
        day = local.weekday()
        if self._from > self._to:
            # The hours after midnight belong to the night that began the day before.
            if minute < self._to:
                day = (day - 1) % 7
            elif minute < self._from:
                return False
        elif not self._from <= minute < self._to:
            return False
        return not self.settings.days or _DAYS[day] in self.settings.days


def _minutes(between: str, where: str) -> tuple[int, int]:
    if not between:
        return 0, 24 * 60
    found = _BETWEEN.fullmatch(between)
    start, end = (int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])) if found else (0, 0)
    if not found or end > 24 * 60 or start == end:
        raise ConfigError(f"{where}.between = {between!r}: write HH:MM-HH:MM, for example 22:00-07:00")
    return start, end


def _field(incident: Incident, field: str) -> str:
    value = getattr(incident, "class_" if field == "class" else field)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(getattr(value, "value", value))


def _matches(pattern: str, value: str) -> bool:
    return any(fnmatchcase(value, one.strip()) for one in pattern.split("|"))

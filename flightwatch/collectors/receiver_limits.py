"""What one user's processes may send: bytes and datagrams a second, and distinct names."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from flightwatch.collectors.receiver_settings import ReceiverSettings

#: Users remembered; the one that sent longest ago gives way.
MOST_USERS = 256
#: A burst may be this many seconds' worth.
BURST_SECONDS = 2.0
NAMES_KEPT_SECONDS = 3600.0


@dataclass(slots=True)
class Bucket:
    """A token bucket."""

    per_second: float
    level: float
    at_s: float

    def take(self, amount: float, now_s: float) -> bool:
        """Take from the bucket when it holds as much."""
        self.level = min(self.per_second * BURST_SECONDS, self.level + (now_s - self.at_s) * self.per_second)
        self.at_s = now_s
        if self.level < amount:
            return False
        self.level -= amount
        return True


@dataclass(slots=True)
class User:
    """One user's budget and counts."""

    size: Bucket
    datagrams: Bucket
    names: set[str] = field(default_factory=set)
    names_since_s: float = 0.0
    refused: int = 0
    told_at_s: float = float("-inf")


class Limits:
    """Budgets of all users."""

    def __init__(self, settings: ReceiverSettings) -> None:
        self._settings = settings
        self._users: OrderedDict[int, User] = OrderedDict()

    def user(self, uid: int, now_s: float) -> User:
        """Return a user's budget."""
        user = self._users.get(uid)
        if user is None:
            settings = self._settings
            user = self._users[uid] = User(
                Bucket(settings.bytes_per_second, settings.bytes_per_second * BURST_SECONDS, now_s),
                Bucket(settings.datagrams_per_second, settings.datagrams_per_second * BURST_SECONDS, now_s),
                names_since_s=now_s,
            )
            while len(self._users) > MOST_USERS:
                self._users.popitem(last=False)
        self._users.move_to_end(uid)
        return user

    def admit(self, uid: int, size: int, now_s: float) -> bool:
        """Say whether a datagram of a user is within the budget; one that is not is counted."""
        user = self.user(uid, now_s)
        if user.datagrams.take(1, now_s) and user.size.take(size, now_s):
            return True
        user.refused += 1
        return False

    def name(self, uid: int, name: str, now_s: float) -> bool:
        """Say whether a user may bring in a name: known ones always, new ones up to the limit of an hour."""
        user = self.user(uid, now_s)
        if now_s - user.names_since_s > NAMES_KEPT_SECONDS:
            user.names.clear()
            user.names_since_s = now_s
        if name in user.names:
            return True
        if len(user.names) >= self._settings.names:
            return False
        user.names.add(name)
        return True

    def tell(self, every_s: float, now_s: float) -> list[tuple[int, int]]:
        """Return users (uid, refused datagrams) that exceeded their budget and were not told of lately."""
        found = []
        for uid, user in self._users.items():
            if user.refused and now_s - user.told_at_s >= every_s:
                found.append((uid, user.refused))
                user.refused, user.told_at_s = 0, now_s
        return found

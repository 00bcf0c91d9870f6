"""What a person or a token may do, and for whose jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from flightwatch.core.errors import ConfigError


class Role(str, Enum):
    """Rising: a viewer reads, an operator acts on incidents and nodes, an admin changes who may do what."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Position in the order; a higher one may do all that a lower one may."""
        return tuple(Role).index(self)

    def covers(self, other: Role) -> bool:
        """Say whether this role may do what `other` may."""
        return self.rank >= other.rank


@dataclass(frozen=True, slots=True)
class Grant:
    """A role for the jobs of one tenant; tenant None: everywhere."""

    role: Role
    tenant: str | None = None


def role_of(text: str) -> Role:
    """Return the role of a name. Raises ConfigError when there is none."""
    try:
        return Role(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a role: {', '.join(role.value for role in Role)}") from error


def grants_text(grants: Iterable[Grant]) -> str:
    """Return grants as the JSON that the control database keeps."""
    return json.dumps([[grant.tenant, grant.role.value] for grant in grants])


def grants_from(text: str) -> tuple[Grant, ...]:
    """Read what `grants_text` wrote."""
    return tuple(Grant(Role(role), tenant) for tenant, role in json.loads(text))


def may(grants: Iterable[Grant], role: Role, tenant: str | None = None) -> bool:
    """Say whether grants include a role for one tenant's things; tenant None: for what belongs to everybody."""
    return any(grant.role.covers(role) and grant.tenant in (None, tenant) for grant in grants)


def within(grants: Iterable[Grant], limits: Iterable[Grant]) -> tuple[Grant, ...]:
    """Return what is left of grants when their holder may do no more than `limits`.

    A limit for one tenant narrows a grant for everywhere to that tenant.
    """
    limits = tuple(limits)
    left: dict[str | None, Role] = {}
    for grant in grants:
        for limit in limits:
            if grant.tenant is not None and limit.tenant is not None and grant.tenant != limit.tenant:
                continue
            tenant = grant.tenant if grant.tenant is not None else limit.tenant
            role = min(grant.role, limit.role, key=lambda one: one.rank)
            if tenant not in left or role.rank > left[tenant].rank:
                left[tenant] = role
    return tuple(Grant(role, tenant) for tenant, role in sorted(left.items(), key=lambda one: one[0] or ""))

"""The person or program behind a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flightwatch.pipeline.control.roles import Grant, Role, may

#: How a viewer was recognised. `local`: loopback without configured authentication; `socket`: the unix socket of
#: this user; `anonymous`: a network declared trusted; `chat`: a verified button of a chat service.
Via = Literal["local", "socket", "session", "token", "proxy", "anonymous", "chat"]

#: Everything a token's scopes can allow.
SCOPES = ("read", "sql", "write", "admin", "metrics", "alerts")


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks. Made by the gate only.

    Attributes
    ----------
    subject: stable name, written to the audit log ("alice@example.com", "token:ci", "local").
    name: shown to people.
    grants: roles, everywhere or for one tenant each.
    via: how the viewer was recognised.
    csrf: what a browser must send back in the header X-CSRFToken with every write, "" where none is needed.
    address: of the client, None on the unix socket.
    scopes: what a token is limited to; None: no limit but the grants.
    """

    subject: str
    name: str
    grants: Sequence[Grant]
    via: Via
    csrf: str = ""
    address: str | None = None
    scopes: frozenset[str] | None = None

    @property
    def role(self) -> Role:
        """The highest role held everywhere, else the highest one held for any tenant."""
        chosen = [grant.role for grant in self.grants if grant.tenant is None] or [g.role for g in self.grants]
        return max(chosen, key=lambda role: role.rank)

    @property
    def tenants(self) -> frozenset[str] | None:
        """Tenants whose jobs the viewer sees; None: everything."""
        if any(grant.tenant is None for grant in self.grants):
            return None
        return frozenset(grant.tenant for grant in self.grants if grant.tenant is not None)

    def may(self, role: Role | str, tenant: str | None = None) -> bool:
        """Say whether the viewer has a role for one tenant's things; tenant None: for what belongs to everybody."""
        return may(self.grants, Role(role), tenant)

    def may_somewhere(self, role: Role | str) -> bool:
        """Say whether the viewer has a role everywhere or for at least one tenant."""
        return any(grant.role.covers(Role(role)) for grant in self.grants)

    def sees_tenant(self, tenant: str | None) -> bool:
        """Say whether the viewer may see what belongs to a tenant; None: what belongs to nobody in particular."""
        return self.may(Role.VIEWER, tenant)

    def has_scope(self, scope: str) -> bool:
        """Say whether a token's scopes include one; a person has them all."""
        return self.scopes is None or scope in self.scopes


EVERYWHERE_ADMIN = (Grant(Role.ADMIN),)
EVERYWHERE_VIEWER = (Grant(Role.VIEWER),)

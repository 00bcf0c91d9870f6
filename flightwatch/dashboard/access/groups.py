"""Roles from the groups that an identity provider or a proxy names."""

from __future__ import annotations

from collections.abc import Iterable

from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.pipeline.control.roles import Grant, Role, role_of


def grants_of_groups(settings: AccessSettings, groups: Iterable[str]) -> tuple[Grant, ...]:
    """Return the grants that the settings give to members of groups, and the default role where they give none.

    Raises
    ------
    ConfigError: the default role is none.
    """
    held = set(groups)
    listed = (
        (Role.VIEWER, settings.viewer_groups),
        (Role.OPERATOR, settings.operator_groups),
        (Role.ADMIN, settings.admin_groups),
    )
    grants = []
    for role, entries in listed:
        for entry in entries:
            group, _, tenant = entry.partition("=")
            if group in held:
                grants.append(Grant(role, tenant or None))
    return tuple(grants) or default_grants(settings)


def default_grants(settings: AccessSettings) -> tuple[Grant, ...]:
    """Return what a person without any role may do. Raises ConfigError when the setting names no role."""
    return (Grant(role_of(settings.default_role)),) if settings.default_role else ()

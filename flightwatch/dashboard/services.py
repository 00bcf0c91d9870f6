"""What the console needs from the process that serves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flightwatch.dashboard.access.control import AccessControl
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.expectation import Expectation
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.channels import Channel
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.profiles.settings import ProfilesSettings
from flightwatch.pipeline.store.client import Store

#: A JSON-ready picture of the running instance (see pipeline.status).
Status = Mapping[str, Any]


@dataclass(frozen=True)
class Services:
    """Handles given to pages and routes.

    Attributes
    ----------
    store: reads of measurements and history; thread-safe.
    status: returns the present state of the instance; must answer within a second.
    ready: returns None when the instance can serve, else one sentence saying what is missing.
    control: incidents, people, tokens and what else is decided; None: nothing can be written.
    access: who is who; None: everybody on loopback is the local administrator.
    profile_limits: how large a profile may be.
    outgoing: client with which an identity provider is asked; None: one with default limits.
    publish_findings: sends findings to the bus, one call at a time; None: this process has no bus.
    channels: where messages go, for their state and a test message.
    actions: how far actions on nodes may go, to be said; None: this process does not know.
    expectations: what jobs should reach, for the utilisation that their tokens make.
    """

    store: Store
    status: Callable[[], Status]
    ready: Callable[[], str | None]
    control: Control | None = None
    access: AccessControl | None = None
    profile_limits: ProfilesSettings = field(default_factory=ProfilesSettings)
    outgoing: Outgoing | None = None
    publish_findings: Callable[[Sequence[Finding]], None] | None = None
    channels: Mapping[str, Channel] = field(default_factory=dict)
    actions: ActionSettings | None = None
    expectations: Sequence[Expectation] = ()

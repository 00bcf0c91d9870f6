"""The incident engine with all that follows it, for `flightwatch up` and `flightwatch engine`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flightwatch.cli.alert_parts import alerting
from flightwatch.cli.common_settings import CommonSettings
from flightwatch.core.clock import Clock
from flightwatch.core.settings import Loaded
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.actions import Actions
from flightwatch.incidents.actuators.registry import actuators_of
from flightwatch.incidents.channels import Channel
from flightwatch.incidents.context import Context
from flightwatch.incidents.evidence import Evidence
from flightwatch.incidents.fast_events import FastEvents, event_detectors
from flightwatch.incidents.housekeeping import Housekeeping, Projections
from flightwatch.incidents.intake import Verify
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from flightwatch.incidents.service import Follower, IncidentService
from flightwatch.incidents.settings import IncidentSettings
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.engine_writes import EngineWrites
from flightwatch.pipeline.control.evidence_pins import EvidencePins
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.projections import ProjectionWriter
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.lag import stored_lag_seconds
from flightwatch.pipeline.store.client import Store


def incident_service(
    settings: Loaded, common: CommonSettings, bus: Bus, control: Control, store: Store, clock: Clock, verify: Verify,
    channels: Sequence[Channel] = (),
) -> IncidentService:  # fmt: skip
    """Return the service; not running. `channels`: places for messages beside those of the settings."""
    context = Context(store, clock, lambda: stored_lag_seconds(bus, clock.now_ms()))
    detect = settings.section(DetectSettings)
    return IncidentService(
        control, bus, context, clock, settings.section(IncidentSettings),
        FastEvents(event_detectors((*detect.disabled, *detect.shadow))),
        (
            *_followers(settings, common, control, store, clock, context),
            alerting(settings, common, control, store, clock, channels),
        ),
        holder=f"{common.node_name}:{os.getpid()}", cluster=common.cluster, verify=verify,
    )  # fmt: skip


def _followers(
    settings: Loaded, common: CommonSettings, control: Control, store: Store, clock: Clock, context: Context
) -> Sequence[Follower]:
    """Return what works on the engine's incidents, one thread each."""
    records, writer = IncidentRecords(control), ProjectionWriter(control, store, common.cluster)
    return (
        Projections(writer),
        Evidence(EvidencePins(control), records, store, context),
        Housekeeping(EngineWrites(control), writer, clock),
        _actions(settings, common, control, store, clock),
    )


def _actions(settings: Loaded, common: CommonSettings, control: Control, store: Store, clock: Clock) -> Follower:
    wanted = settings.section(ActionSettings)
    actuators = actuators_of(wanted, Outgoing(settings.section(OutgoingSettings), clock), clock)
    records = ActionRecords(control, common.cluster)
    return Actions(records, IncidentRecords(control), store, actuators, wanted, clock, common.cluster)


def engine_state(worker: str, service: IncidentService) -> str:
    """Return how the engine does for `flightwatch status`: the state of its thread, and what fails beside it."""
    if worker != "running":
        return worker
    failing = [f"{name}: {one.error}" for name, one in service.follower_states.items() if one.error]
    return f"running, but {'; '.join(failing)}" if failing else worker

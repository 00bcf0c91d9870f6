"""The detection loop with everything it talks to, for `flightwatch up` and `flightwatch detect`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.core.clock import Clock
from flightwatch.core.ed25519 import SigningKey
from flightwatch.core.errors import ConfigError
from flightwatch.core.settings import Loaded
from flightwatch.detectors.autoencoder_model import load_model
from flightwatch.detectors.contract import Detector
from flightwatch.detectors.expectation import Expectation, read_expectation
from flightwatch.detectors.registry import all_detectors
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.detection import DetectorRequests, DetectorSettings
from flightwatch.pipeline.control.erasures import Erasures
from flightwatch.pipeline.detection.erasing import Eraser
from flightwatch.pipeline.detection.escalation import Escalation
from flightwatch.pipeline.detection.loop import DetectionLoop
from flightwatch.pipeline.detection.publish import FindingPublisher
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.detection.shards import Membership
from flightwatch.pipeline.evidence_requests import EvidenceRequester
from flightwatch.pipeline.profiles.records import Profiles
from flightwatch.pipeline.store.client import Store

log = logging.getLogger(__name__)


def expectations_of(section: DetectSettings) -> Sequence[Expectation]:
    """Return what jobs should reach by the file that the settings name. Raises ConfigError when it cannot be used."""
    return read_expectation(Path(section.expectation)) if section.expectation else ()


def expectations_to_show(section: DetectSettings) -> Sequence[Expectation]:
    """Return what jobs should reach, for pages: nothing, and a warning, where the file cannot be used here.

    A console may run on another machine than detection does, with the same settings.
    """
    try:
        return expectations_of(section)
    except ConfigError as error:
        log.warning("pages show no utilisation by expectations: %s", error)
        return ()


def configured_detectors(section: DetectSettings) -> list[Detector]:
    """Return all detectors with the files that the settings name. Raises ConfigError when one cannot be used."""
    model = load_model(Path(section.autoencoder)) if section.autoencoder else None
    return all_detectors(expectations_of(section) or None, model)


def detection_loop(
    settings: Loaded,
    common: CommonSettings,
    bus: Bus,
    store: Store,
    control: Control,
    key: SigningKey,
    clock: Clock,
    behind_s: Callable[[], float | None],
    membership: Membership | None = None,
) -> DetectionLoop:
    """Return the loop; not started.

    Parameters
    ----------
    key: the control server's, with which requests to agents are signed.
    behind_s: ingest's lag in seconds, None when unknown. membership: None where one process does everything.
    """
    section = settings.section(DetectSettings)
    escalation = Escalation(
        DetectorRequests(control), EvidenceRequester(bus, key.sign, clock), Profiles(control), section, common.cluster
    )
    return DetectionLoop(
        store,
        FindingPublisher(bus, clock, common.cluster, common.node_name).publish,
        clock,
        section,
        detectors=configured_detectors(section),
        membership=membership,
        changed=DetectorSettings(control).all,
        escalate=escalation,
        behind_s=behind_s,
        cluster=common.cluster,
        chores=Eraser(store, Erasures(control)),
    )

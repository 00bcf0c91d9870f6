"""All detectors, in the order in which they run. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from flightwatch.detectors.contract import Detector
from flightwatch.detectors.coverage import CoverageDetector
from flightwatch.detectors.fail_slow import FailSlowDetector
from flightwatch.detectors.imbalance import ImbalanceDetector
from flightwatch.detectors.slow import SlowDetector

DETECTORS: tuple[Callable[[], Detector], ...] = (
    SlowDetector,
    FailSlowDetector,
    ImbalanceDetector,
    CoverageDetector,
)


def all_detectors() -> list[Detector]:
    """Return a new instance of every detector with its default thresholds."""
    return [make() for make in DETECTORS]

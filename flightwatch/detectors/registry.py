"""All detectors, in the order in which they run. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flightwatch.detectors.anomaly import AnomalyDetector
from flightwatch.detectors.autoencoder import AutoencoderDetector
from flightwatch.detectors.autoencoder_model import Model
from flightwatch.detectors.contract import Detector
from flightwatch.detectors.cooling import CoolingDetector
from flightwatch.detectors.coverage import CoverageDetector
from flightwatch.detectors.crash import CrashDetector
from flightwatch.detectors.device_errors import DeviceErrorDetector
from flightwatch.detectors.expectation import Expectation
from flightwatch.detectors.fail_slow import FailSlowDetector
from flightwatch.detectors.hang_live import HangDetector
from flightwatch.detectors.hosts import ClockSkewDetector, ConfigDriftDetector, DeadNodeDetector
from flightwatch.detectors.imbalance import ImbalanceDetector
from flightwatch.detectors.job_regression import JobRegressionDetector
from flightwatch.detectors.memory_errors import MemoryErrorDetector
from flightwatch.detectors.nonfinite import NonfiniteDetector
from flightwatch.detectors.numerics import NumericsDetector
from flightwatch.detectors.overheat import OverheatDetector
from flightwatch.detectors.ports import PortDetector
from flightwatch.detectors.precursors import PrecursorDetector, ReplicaDigestDetector
from flightwatch.detectors.scalars import ScalarDetector
from flightwatch.detectors.sensors import SensorDetector
from flightwatch.detectors.slow import SlowDetector
from flightwatch.detectors.storage import StorageDetector
from flightwatch.detectors.throttle import ThrottleDetector

DETECTORS: tuple[Callable[[], Detector], ...] = (
    SlowDetector,
    FailSlowDetector,
    JobRegressionDetector,
    ImbalanceDetector,
    CoverageDetector,
    CoolingDetector,
    OverheatDetector,
    ThrottleDetector,
    MemoryErrorDetector,
    DeviceErrorDetector,
    HangDetector,
    CrashDetector,
    PortDetector,
    StorageDetector,
    SensorDetector,
    DeadNodeDetector,
    ClockSkewDetector,
    ConfigDriftDetector,
    ScalarDetector,
    NonfiniteDetector,
    NumericsDetector,
    PrecursorDetector,
    ReplicaDigestDetector,
    AnomalyDetector,
)


def all_detectors(expectations: Sequence[Expectation] | None = None, model: Model | None = None) -> list[Detector]:
    """Return a new instance of every detector with its default thresholds.

    Parameters
    ----------
    expectations: what jobs should reach, for the detector of regressions.
    model: of the autoencoder, which is absent without one.
    """
    detectors = [make() for make in DETECTORS]
    if model is not None:
        detectors.append(AutoencoderDetector(model))
    for detector in detectors:
        if isinstance(detector, JobRegressionDetector) and expectations is not None:
            detector.expectations = tuple(expectations)
    return detectors

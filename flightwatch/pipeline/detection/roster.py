"""Which detectors run now: the file's settings, changed at run time from the control database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flightwatch.core.errors import ConfigError, TransientError
from flightwatch.detectors.contract import Detector
from flightwatch.detectors.tuning import tuned
from flightwatch.pipeline.control.detection import DetectorSetting
from flightwatch.pipeline.detection.settings import DetectSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Roster:
    """The detectors of one moment.

    Attributes
    ----------
    running: those that run, tuned. shadow: names of those whose findings are only logged.
    off: names of those that do not run.
    """

    running: tuple[Detector, ...]
    shadow: frozenset[str] = field(default_factory=frozenset)
    off: frozenset[str] = field(default_factory=frozenset)


def mode_of(name: str, settings: DetectSettings, changed: Mapping[str, DetectorSetting]) -> str:
    """Return "on", "shadow" or "off": what was set at run time, else what the file says."""
    one = changed.get(name)
    if one is not None and one.mode is not None:
        return one.mode
    return "off" if name in settings.disabled else "shadow" if name in settings.shadow else "on"


class RosterKeeper:
    """Follows the settings. A setting that cannot be used is logged once and leaves the detector at its defaults.

    Parameters
    ----------
    changed: reads the changes (`DetectorSettings.all`); None: the file alone decides.
    """

    def __init__(
        self,
        detectors: Sequence[Detector],
        settings: DetectSettings,
        changed: Callable[[], Mapping[str, DetectorSetting]] | None = None,
    ) -> None:
        self._detectors, self._settings, self._changed = tuple(detectors), settings, changed
        self._last: Mapping[str, DetectorSetting] | None = None
        self._roster = self._made({})

    def now(self) -> Roster:
        """Return the detectors of this moment; while the control database is away, those of the moment before."""
        if self._changed is None:
            return self._roster
        try:
            changed = self._changed()
        except TransientError as error:
            log.warning("Settings of detectors cannot be read, the last ones hold: %s", error)
            return self._roster
        if changed != self._last:
            if self._last is not None:
                log.info("Settings of detectors changed.")
            self._last, self._roster = changed, self._made(changed)
        return self._roster

    def _made(self, changed: Mapping[str, DetectorSetting]) -> Roster:
        modes = {one.name: mode_of(one.name, self._settings, changed) for one in self._detectors}
        running = [self._tuned(one, changed.get(one.name)) for one in self._detectors if modes[one.name] != "off"]
        shadow, off = (frozenset(name for name, one in modes.items() if one == mode) for mode in ("shadow", "off"))
        return Roster(tuple(running), shadow, off)

    @staticmethod
    def _tuned(detector: Detector, one: DetectorSetting | None) -> Detector:
        try:
            return tuned(detector, one.thresholds if one is not None else {})
        except ConfigError as error:
            log.error("Settings of the detector %s are passed over: %s", detector.name, error)
            return detector

"""Detectors follow what people change at run time; thresholds by name; versions say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import ConfigError, TransientError
from flightwatch.detectors.registry import all_detectors
from flightwatch.detectors.tuning import parse_override, thresholds_of, tuned
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.detection import DetectorRequests, DetectorSettings, RequestLimits
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.roster import RosterKeeper
from flightwatch.pipeline.detection.settings import DetectSettings

ALL = {one.name: one for one in all_detectors()}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def control(tmp_path: Path, clock: ManualClock) -> Iterator[Control]:
    opened = open_control(f"sqlite:///{tmp_path / 'control.db'}", ControlSettings(), clock)
    yield opened
    opened.close()


def test_file_then_run_time_settings_decide(control: Control) -> None:
    changes = DetectorSettings(control)
    keeper = RosterKeeper(list(ALL.values()), DetectSettings(disabled=("ports",), shadow=("anomaly",)), changes.all)
    first = keeper.now()
    assert {one.name for one in first.running} == set(ALL) - {"ports"}
    assert first.shadow == {"anomaly"}
    assert keeper.now() is first
    changes.set_mode("ports", "on", "ann")
    changes.set_mode("slow", "off", "ann")
    changes.set_mode("fail_slow", "shadow", "ann")
    changes.set_threshold("fail_slow", "shift", 0.07, "bob")
    second = keeper.now()
    assert {one.name for one in second.running} == set(ALL) - {"slow"}
    assert second.shadow == {"anomaly", "fail_slow"}
    (fail_slow,) = (one for one in second.running if one.name == "fail_slow")
    assert thresholds_of(fail_slow)["shift"] == 0.07
    assert fail_slow.version.startswith(ALL["fail_slow"].version + "+")
    assert changes.all()["fail_slow"].changed_by == "bob"
    assert changes.reset("fail_slow")
    assert not changes.reset("fail_slow")
    changes.set_mode("slow", None, "ann")
    assert {one.name for one in keeper.now().running} == set(ALL)


def test_a_setting_that_cannot_be_used_leaves_the_defaults(control: Control) -> None:
    changes = DetectorSettings(control)
    changes.set_threshold("fail_slow", "from_an_older_version", 1.0, "ann")
    keeper = RosterKeeper([ALL["fail_slow"]], DetectSettings(), changes.all)
    assert keeper.now().running == (ALL["fail_slow"],)


def test_the_last_settings_hold_while_the_database_is_away(control: Control) -> None:
    away = False

    def changed() -> object:
        if away:
            raise TransientError("away")
        return DetectorSettings(control).all()

    DetectorSettings(control).set_mode("ports", "off", "ann")
    keeper = RosterKeeper(list(ALL.values()), DetectSettings(), changed)  # type: ignore[arg-type]
    before = keeper.now()
    away = True
    assert keeper.now() is before
    assert "ports" not in {one.name for one in before.running}


def test_thresholds_by_plain_and_dotted_name() -> None:
    slow = ALL["slow"]
    everywhere = thresholds_of(tuned(slow, {"level_z": 9.0}))
    assert {value for name, value in everywhere.items() if name.endswith(".level_z")} == {9.0}
    one = thresholds_of(tuned(slow, {"channels.data.level_z": 9.0}))
    assert one["channels.data.level_z"] == 9.0
    assert one["channels.compute.level_z"] == thresholds_of(slow)["channels.compute.level_z"]
    windows = tuned(slow, {"z": 5.0})
    assert thresholds_of(windows)["channels.compute.windows.z"] == 5.0
    assert tuned(slow, {}) is slow
    assert tuned(slow, {"z": 5.0}).version == windows.version != tuned(slow, {"z": 6.0}).version


@pytest.mark.parametrize(
    ("detector", "name", "value"),
    [("slow", "nothing", 1.0), ("replica_digest", "z", 1.0), ("fail_slow", "confirm_steps", 2.5)],
)
def test_thresholds_that_cannot_be(detector: str, name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=detector):
        tuned(ALL[detector], {name: value})


@pytest.mark.parametrize("text", ["slow", "slow.z", "slow.z=", "z=5", "slow.z=nan", "slow.=5"])
def test_overrides_are_written_one_way(text: str) -> None:
    with pytest.raises(ConfigError, match=r"DETECTOR\.NAME=NUMBER"):
        parse_override(text)
    assert parse_override("slow.channels.data.z=5e0") == ("slow", "channels.data.z", 5.0)


def test_requests_are_limited_per_job_and_in_all(control: Control, clock: ManualClock) -> None:
    requests, limits = DetectorRequests(control), RequestLimits(600, 3)

    def take(job: str, finding: str) -> str | None:
        return requests.take("evidence", "c", job, finding, limits)

    assert take("a", "f1") is None
    assert "already" in str(take("a", "f1"))
    assert "600 s" in str(take("a", "f2"))
    assert take("b", "f3") is None
    assert requests.take("profile", "c", "a", "f1", limits) is None
    assert take("c", "f4") is None
    assert "last hour" in str(take("d", "f5"))
    clock.advance(601)
    assert "last hour" in str(take("a", "f2"))
    clock.advance(3600)
    assert take("a", "f2") is None

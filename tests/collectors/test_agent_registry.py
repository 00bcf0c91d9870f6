from __future__ import annotations

from pathlib import Path

import pytest

from flightwatch.collectors.entry_points import find
from flightwatch.collectors.environment import environment_at
from flightwatch.collectors.registry import COLLECTORS, available, make_collectors
from flightwatch.collectors.settings import AgentSettings
from flightwatch.core.errors import ConfigError


def test_every_entry_is_made_under_its_own_name(tmp_path: Path) -> None:
    made = make_collectors(environment_at(str(tmp_path)), third_party=False)
    assert [collector.name for collector in made] == [name for name, *_ in COLLECTORS]
    assert all(collector.interval_seconds > 0 for collector in made)


#: What each collector asks: a library in this process, files of the kernel, a program.
LIBRARIES = {"nvml", "amd", "mthreads"}
FILES = {"infiniband", "hwmon", "thermal", "edac", "disks", "nfs", "lustre", "host", "logs"}
PROGRAMS = {"nvidia-smi", "ascend", "metax", "cambricon", "iluvatar", "hygon", "intel", "ipmi", "ethtool"}


def test_default_intervals_follow_what_is_asked(tmp_path: Path) -> None:
    made = {c.name: c for c in make_collectors(environment_at(str(tmp_path)), third_party=False)}
    assert {made[name].interval_seconds for name in LIBRARIES} == {1.0}
    assert {made[name].interval_seconds for name in FILES} == {5.0}
    assert all(made[name].interval_seconds >= 30.0 for name in PROGRAMS)
    # A program may hang: it never holds up what reads files and libraries.
    assert all(getattr(made[name], "own_thread", False) for name in PROGRAMS)


def test_the_order_lets_the_nodes_row_come_last() -> None:
    names = [name for name, *_ in COLLECTORS]
    assert all(names.index(name) < names.index("host") for name in ("hwmon", "edac", "disks", "nfs"))


def test_a_disabled_collector_is_not_made_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    made = make_collectors(environment_at(str(tmp_path), AgentSettings(disabled=("nvml", "nfs"))), third_party=False)
    assert {"nvml", "nfs"}.isdisjoint(collector.name for collector in made)
    with pytest.raises(ConfigError, match=r"agent\.disabled names nvlm; known: nvml"):
        make_collectors(environment_at(str(tmp_path), AgentSettings(disabled=("nvlm",))), third_party=False)


def test_other_packages_add_collectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "acme_card-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(
        "[console_scripts]\nacme = acme:main\n[flightwatch.collectors]\n# comment\n"
        "acme-card = acme_card_for_test:Card\nnvml = acme_card_for_test:Card\nbroken = nocolon\n"
    )
    (tmp_path / "acme_card_for_test.py").write_text(
        "class Card:\n    name = 'acme-card'\n    interval_seconds = 5.0\n"
        "    def __init__(self, environment):\n        self.environment = environment\n"
        "    def collect(self, now_ms):\n        return []\n"
    )
    (tmp_path / "bad-1.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(find("flightwatch.collectors", [str(tmp_path), "/no/such/folder"])) == [
        ("acme-card", "acme_card_for_test", "Card"),
        ("nvml", "acme_card_for_test", "Card"),
    ]
    assert [entry.module for entry in available() if entry.name == "nvml"] == ["flightwatch.collectors.nvml"]
    made = make_collectors(environment_at(str(tmp_path)))
    assert made[-1].name == "acme-card"

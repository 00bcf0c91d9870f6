"""Prefixes of log lines: every transport the kernel's and launchers' lines come through."""

from __future__ import annotations

import pytest

from flightwatch.collectors.captures.log_prefix import split
from flightwatch.core.clock import parse_iso_utc

AT = parse_iso_utc("2026-03-10T00:00:00Z")


@pytest.mark.parametrize(
    ("line", "message", "time", "host", "uptime_s"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 79", "NVRM: Xid (PCI:0000:01:00): 79", None, None, None),
        ("[  123.456789] NVRM: x", "NVRM: x", None, None, 123.456789),
        ("[12345.678901][ T1234] NVRM: x", "NVRM: x", None, None, 12345.678901),
        ("<6>[    2.608284] mlx5_core 0000:41:00.1: x", "mlx5_core 0000:41:00.1: x", None, None, 2.608284),
        ("6,3964,206764307,-;nvidia-nvswitch2: open", "nvidia-nvswitch2: open", None, None, 206.764307),
        ("[Sun Feb 23 16:24:18 2025] NVRM: x", "NVRM: x", "2025-02-23T16:24:18Z", None, None),
        ("kern  :warn  : 2025-01-21T04:41:44,285060+00:00 p[1]: x", "p[1]: x", "2025-01-21T04:41:44.285Z", None, None),
        ("10.0.0.1: kern: err: [2026-01-22T21:30:51Z]: NVRM: x", "NVRM: x", "2026-01-22T21:30:51Z", "10.0.0.1", None),
        ("Mar  3 04:11:09 gpu-17 kernel: [91234.1] NVRM: x", "NVRM: x", "2026-03-03T04:11:09Z", "gpu-17", 91234.1),
        ("Dec 31 23:59:59 gpu-17 kernel: NVRM: x", "NVRM: x", "2025-12-31T23:59:59Z", "gpu-17", None),
        ("Okt 06 17:59:27 gpu-17 kernel: NVRM: x", "NVRM: x", "2025-10-06T17:59:27Z", "gpu-17", None),
        ("Mär  2 17:59:27 gpu-17 kernel: NVRM: x", "NVRM: x", "2026-03-02T17:59:27Z", "gpu-17", None),
        ("2024-11-05T10:00:00+0200 gpu-1.c kernel: NVRM: x", "NVRM: x", "2024-11-05T08:00:00Z", "gpu-1.c", None),
        ("<4>1 2024-11-05T10:00:00Z gpu-1 kernel - - - NVRM: x", "NVRM: x", "2024-11-05T10:00:00Z", "gpu-1", None),
        ("1730000000.123456 gpu-2 kernel: NVRM: x", "NVRM: x", "2024-10-27T03:33:20.123Z", "gpu-2", None),
        ("Tue 2024-11-05 10:00:00 UTC gpu-9 kernel: NVRM: x", "NVRM: x", "2024-11-05T10:00:00Z", "gpu-9", None),
        ("2024-11-05T10:00:00.1Z stderr F step 1", "step 1", "2024-11-05T10:00:00.1Z", None, None),
        ("[Feb 25 2025 13:59:45] [INFO] [tid 1803] hello", "hello", "2025-02-25T13:59:45Z", None, None),
        ("node-14:  iteration 1/ 5 |", " iteration 1/ 5 |", None, "node-14", None),
        ("pcieport 0000:00:03.1: AER: x", "pcieport 0000:00:03.1: AER: x", None, None, None),
    ],
)  # fmt: skip
def test_layers(line: str, message: str, time: str | None, host: str | None, uptime_s: float | None) -> None:
    found = split(line, AT)
    assert found.message.strip() == message.strip()
    assert found.ts_ms == (None if time is None else parse_iso_utc(time))
    assert found.host == host
    assert found.uptime_s == uptime_s


def test_a_time_without_a_year_stays_unknown_without_a_capture_time() -> None:
    found = split("Mar  3 04:11:09 gpu-17 kernel: x")
    assert found.ts_ms is None
    assert found.clock == "Mar 3 04:11:09"


def test_a_zone_that_is_missing_is_said() -> None:
    assert not split("[Sun Feb 23 16:24:18 2025] x").zone_known
    assert split("2025-01-21T04:41:44Z x").zone_known


def test_launcher_tags() -> None:
    assert split("[rank13]: hello").rank == 13
    assert split("[default3]:hello").local_rank == 3
    assert split("[Rank 1] Watchdog caught").rank is None


@pytest.mark.parametrize("line", ["[Sun Feb 30 99:99:99 2025] x", "2024-99-99 10:00:00 x", "Feb 31 10:00:00 a b"])
def test_impossible_times_are_not_times(line: str) -> None:
    assert split(line, AT).ts_ms is None

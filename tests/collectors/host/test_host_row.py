from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.collectors.clock_offset import STA_NANO, STA_UNSYNC, TIME_ERROR, kernel_clock, offset_us
from flightwatch.collectors.host import HostCollector, cpu_ticks, load1, memory_used_bytes, stall_us
from flightwatch.core.errors import NoData

PROC = {
    "proc/stat": "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3 4\n",
    "proc/loadavg": "3.50 2.00 1.00 2/900 12345\n",
    "proc/meminfo": "MemTotal:  2000 kB\nMemFree: 10 kB\nMemAvailable: 500 kB\n",
    "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345\nfull avg10=0.00 total=99\n",
}


def test_the_first_row_has_no_cpu_share_and_the_second_has(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    environment = environment_of(tree_of(PROC))
    environment.summary.offer("hwmon", 1000, {"inlet_c": 21.0})
    environment.summary.offer("edac", -90_000, {"edac_corrected_total": 5})
    collector = HostCollector(environment)
    (row,) = collector.collect(1000)
    assert row.values == {
        "ts": 1000,
        "inlet_c": 21.0,
        "cpu_pct": None,
        "load1": 3.5,
        "mem_used_bytes": 1500 * 1024,
        "clock_offset_us": None,
        "extra_counters": {"pressure.io_some_us": 12345},
    }
    tree_of({"proc/stat": "cpu  150 0 150 775 125 0 0 0 99 0\n"})
    (row,) = collector.collect(6000)
    assert row.values["cpu_pct"] == 50.0
    tree_of({"proc/stat": "cpu  1 0 1 1 1 0 0 0 1 0\n"})
    (row,) = collector.collect(11_000)
    assert row.values["cpu_pct"] is None


def test_an_empty_machine_is_no_data(tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> None:
    with pytest.raises(NoData):
        HostCollector(environment_of(tree_of({"x": ""}))).collect(1)


@pytest.mark.parametrize("content", [None, b"", b"cpu \n", b"cpu a b c d\n", b"intr 1 2 3 4", b"\xff\xfe"])
def test_damaged_proc_files_are_unknown(content: bytes | None) -> None:
    assert cpu_ticks(content) is None
    assert memory_used_bytes(content) is None
    assert load1(content) is None
    assert stall_us(content) is None


def test_more_available_than_there_is_is_unknown() -> None:
    assert memory_used_bytes(b"MemTotal: 10 kB\nMemAvailable: 20 kB\n") is None
    assert load1(b"nan 1 1") is None


@pytest.mark.parametrize(
    ("state", "status", "offset", "expected"),
    [
        (0, STA_NANO, -1500, -1.5),
        (0, 0, 250, 250.0),
        (TIME_ERROR, 0, 0, None),
        (0, STA_UNSYNC, 0, None),
        (-1, 0, 0, None),
    ],
)
def test_clock_offset(state: int, status: int, offset: int, expected: float | None) -> None:
    assert offset_us(state, status, offset) == expected


def test_the_kernel_answers_or_the_offset_is_unknown() -> None:
    answer = kernel_clock()()
    assert answer is None or abs(answer) < 1e9

"""Detection benchmark on public seeds: `python -m benchmarks.detection [--quick]`, or `make bench-detect`.

Prints precision, recall, F1, top-1 node, time to detect, false findings per 1,000 node-hours of faulty and of clean
runs and CPU per rank-step, for every fault kind and for the baselines beside it. A finding counts when it blames
hardware. Apart from that: `--held-out` (a set no threshold was chosen on), `--clean-hours N` (healthy node-hours; goes
on where it stopped) and `--scale` (one cycle at 100,000 ranks).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.detection.clean import clean_runs
from benchmarks.detection.nab import nab_line
from benchmarks.detection.scale import measure
from benchmarks.detection.tables import (
    baseline_table,
    confounder_table,
    cost,
    hard_table,
    heading,
    held_out_table,
    telemetry_table,
    timing_table,
    training_table,
)
from flightwatch.detectors.contract import Detector
from flightwatch.detectors.hang_live import HangDetector
from flightwatch.detectors.registry import all_detectors

TIMING = ("slow", "fail_slow", "imbalance", "coverage")
#: Where the long clean run writes what it has done.
RECORD = Path(__file__).with_name("clean_hours.json")
#: Telemetry is drawn denser in time than steps: a tenth of the hours.
TELEMETRY_PART = 10


def main() -> int:
    """Run what is asked for; 1 when the total on public seeds is below 0.95."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds and 2,000 clean node-hours")
    parser.add_argument("--held-out", action="store_true", help="the held-out set only")
    parser.add_argument("--scale", action="store_true", help="one cycle at 100,000 ranks only")
    parser.add_argument("--clean-hours", type=float, help="so many clean node-hours only, going on with --record")
    parser.add_argument("--record", type=Path, default=RECORD, help="file of the clean run")
    arguments = parser.parse_args()
    every = all_detectors()
    timing = [one for one in every if one.name in TIMING]
    rest = [one for one in every if one.name not in TIMING]
    if arguments.clean_hours:
        _clean(timing, rest, arguments.clean_hours, arguments.record)
        return 0
    if arguments.scale:
        for line in measure(timing):
            print(line, flush=True)
        return 0
    if arguments.held_out:
        held_out_table(timing, 12)
        return 0
    return _public(timing, rest, 2 if arguments.quick else 5, 2_000 if arguments.quick else 100_000)


def _public(timing: Sequence[Detector], rest: Sequence[Detector], seeds: int, hours: float) -> int:
    heading("Timing faults, at least four role peers")
    total, kept = timing_table(timing, seeds)
    baseline_table(kept, timing)
    heading("Two or three role peers")
    timing_table(timing, max(1, seeds // 2), small=True)
    hard_table(timing, seeds)
    confounder_table(timing, seeds)
    few = max(1, seeds // 2)
    telemetry_table(rest, few)
    training = [*rest, *([] if any(one.name == HangDetector.name for one in rest) else [HangDetector()])]
    training_table(training, 2 * few)
    print(f"\n{nab_line()}")
    _clean(timing, rest, hours, None)
    slow = next(one for one in timing if one.name == "slow")
    print(f"Cost: {cost(slow):.3f} us of CPU per rank-step (slow-node detector, 1,024 ranks x 400 steps)")
    return 0 if total.f1 >= 0.95 else 1


def _clean(timing: Sequence[Detector], rest: Sequence[Detector], hours: float, record: Path | None) -> None:
    beside = None if record is None else record.with_stem(record.stem + "_telemetry")
    print(clean_runs(timing, hours, telemetry=False, path=record).line(), flush=True)
    print(clean_runs(rest, hours / TELEMETRY_PART, telemetry=True, path=beside).line(), flush=True)


if __name__ == "__main__":
    sys.exit(main())

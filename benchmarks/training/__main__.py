"""What the training probe costs: `make bench-training` prints the table of docs/training.md.

Needs a Python with torch: FLIGHTWATCH_TEST_TORCH_PYTHON, or .venv-torch at the root.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from flightwatch.collectors.environment import environment_at
from flightwatch.collectors.receiver import ReceiverCollector
from flightwatch.collectors.receiver_settings import ReceiverSettings

HERE = Path(__file__).parent
CASES = (("with non-finite checks", "1"), ("without", "0"))


def run_job(python: str, socket: str, check_every: str, words: list[str]) -> list[dict[str, Any]]:
    """Run the job once over two ranks and return their results."""
    command = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend",
               "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(HERE / "gpt_job.py"), *words]  # fmt: skip
    own = {"FLIGHTWATCH": "1", "FLIGHTWATCH_SOCKET": socket, "FLIGHTWATCH_CHECK_EVERY": check_every,
           "OMP_NUM_THREADS": "1"}  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own, check=False)
    lines = [line.partition("RESULT ")[2] for line in done.stdout.splitlines() if "RESULT " in line]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"the job failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in lines]


def main() -> int:
    """Print one line per case and rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=os.environ.get("FLIGHTWATCH_TEST_TORCH_PYTHON", ".venv-torch/bin/python"))
    parser.add_argument("words", nargs="*", help="arguments of the job, after --")
    arguments = parser.parse_args()
    if not Path(arguments.python).exists():
        print(f"{arguments.python}: no Python with torch here", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="fw-") as folder:
        environment = environment_at("/")
        environment.receiver = ReceiverSettings(socket=f"{folder}/s")
        receiver = ReceiverCollector(environment)
        list(receiver.collect(0))
        stop = threading.Event()

        def drain() -> None:
            while not stop.wait(0.2):
                list(receiver.collect(time.time_ns() // 1_000_000))

        thread = threading.Thread(target=drain)
        thread.start()
        try:
            print(
                f"{'case':24} rank  step ms  hooks ms  hooks/step  A/B ratio (noise)  CPU A/B (noise)   B/step  errors"
            )
            for name, every in CASES:
                for one in run_job(arguments.python, f"{folder}/s", every, arguments.words):
                    print(
                        f"{name:24} {one['rank']:4}  {one['step_ms']:7.1f}  {one['hook_ms']:8.3f}"
                        f"  {one['hook_ratio']:10.3%}  {one['ab_ratio']:9.4f} ({one['noise']:.4f})"
                        f"  {one['cpu_ratio']:7.4f} ({one['cpu_noise']:.4f})"
                        f"  {one['wire_bytes_per_step']:6.0f}  {one['errors']:6}"
                    )
        finally:
            stop.set()
            thread.join()
            receiver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Loss and gradient norm of a simulated job: a falling curve with noise, the same for the same seed and step."""

from __future__ import annotations

import numpy as np

from flightwatch.core.protocols import Row, Value
from flightwatch.simulator.cluster import Job

#: Loss of the first step and the one that training approaches.
FIRST_LOSS, LAST_LOSS = 9.5, 1.9


def scalar_rows(job: Job, node: str, cluster: str, seed: int, step: int, ts_ms: int, step_s: float) -> list[Row]:
    """Return loss, gradient norm, learning rate and tokens per second of one step of one job.

    Parameters
    ----------
    node: which node's agent sends them (that of rank 0).
    """
    rng = np.random.default_rng([seed, 21, step])
    trend = LAST_LOSS + (FIRST_LOSS - LAST_LOSS) / (1 + step / 150.0) ** 0.6
    values = {
        "loss": trend * float(np.exp(rng.normal(0, 0.006))),
        "grad_norm": 0.6 * (1 + 3 / (1 + step / 100.0)) * float(np.exp(rng.normal(0, 0.08))),
        "lr": 3e-4 * min(1.0, (step + 1) / 200.0),
        "tokens_per_second": 4096.0 * 8 * job.dp / step_s,
    }
    place: dict[str, Value] = {
        "ts": ts_ms,
        "cluster": cluster,
        "node": node,
        "job": job.name,
        "run": job.run,
        "step": step,
        "rank": -1,
    }
    return [Row("training_scalars", {**place, "name": name, "value": value}) for name, value in values.items()]

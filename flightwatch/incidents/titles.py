"""One line that names an incident."""

from __future__ import annotations

from collections.abc import Sequence

from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope
from flightwatch.incidents.statements import Known

WORDS = {
    Kind.SLOW: "slow", Kind.FAIL_SLOW: "steps became longer", Kind.IMBALANCE: "uneven work",
    Kind.JOB_SLOW: "all ranks slow", Kind.JOB_REGRESSION: "slower than its best run", Kind.HANG: "hangs",
    Kind.CRASH: "crashed", Kind.DEVICE_ERROR: "device error", Kind.NONFINITE: "non-finite values",
    Kind.NUMERICS: "numbers out of range", Kind.LOSS_SPIKE: "loss spike", Kind.GRAD_NORM: "gradient norm off",
    Kind.SDC_PRECURSOR: "signs of silent data corruption", Kind.REPLICA_DIGEST: "replicas differ",
    Kind.OVERHEAT: "too hot", Kind.COOLING: "cooling fails", Kind.ECC: "memory errors", Kind.RDMA: "network errors",
    Kind.LINK_FLAP: "link flaps", Kind.THROTTLE: "clocks held down", Kind.POWER: "power trouble",
    Kind.STORAGE: "storage slow", Kind.SENSOR: "sensor fails", Kind.DEAD_NODE: "gone silent",
    Kind.CONFIG_DRIFT: "configured differently", Kind.CLOCK_SKEW: "clock is wrong", Kind.ANOMALY: "behaves unusually",
    Kind.COVERAGE: "not fully observed", Kind.BLIND: "Flightwatch is blind",
}  # fmt: skip
_NAMED = (FindingScope.RACK, FindingScope.COOLING_ZONE, FindingScope.POWER_ZONE, FindingScope.LEAF_SWITCH,
          FindingScope.SCALE_UP_DOMAIN, FindingScope.STORAGE_TARGET)  # fmt: skip
_LONGEST = 200


def place_of(root: Known) -> str:
    """Return how people name the place of a finding."""
    if root.node is not None:
        place = root.node if root.device is None else f"{root.node} device {root.device}"
        if root.hca is not None:
            place = f"{root.node} {root.hca}"
        return place if root.rank is None else f"{place} (rank {root.rank})"
    if root.rank is not None:
        return f"rank {root.rank} of {root.job}" if root.job else f"rank {root.rank}"
    if root.scope in _NAMED and root.targets:
        return f"{root.scope.value.replace('_', ' ')} {', '.join(root.targets[:3])}"
    if root.targets:
        return ", ".join(root.targets[:3])
    return root.job or root.scope.value.replace("_", " ")


def title_of(root: Known, crowd: Sequence[Known], domain: str | None, consequences: int) -> str:
    """Return the title of an incident.

    Parameters
    ----------
    crowd: findings like the root that nothing explains, the root included. domain: what their nodes share.
    """
    words = WORDS[root.kind] + (f" ({root.class_})" if root.class_ else "")
    if root.kind is Kind.BLIND:
        return words
    nodes = {one.node for one in crowd}
    if len(nodes) > 1:
        title = f"{len(nodes)} nodes{f' of {domain}' if domain else ''}: {words}"
    else:
        title = f"{place_of(root)}: {words}"
    if root.job and root.job not in title:
        title += f" in {root.job}"
    return (title + (f", {consequences} consequences" if consequences > 1 else ""))[:_LONGEST]

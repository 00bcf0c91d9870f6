"""Incidents as the engine would hold them, with the facts around them: what messages are tried on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flightwatch.core.incident import AlertReason, Incident, IncidentState, Progress
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.cost import cost_of
from flightwatch.incidents.facts import Facts
from flightwatch.pipeline.control.action_model import Action
from flightwatch.pipeline.store.alert_reads import ChangedFact, Place
from tests.incidents.alert_kit import OPENED_MS, incident

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOW_MS = OPENED_MS + 4 * MINUTE + 10_000


@dataclass(frozen=True)
class Scene:
    """One message to be made."""

    incident: Incident
    facts: Facts
    reason: AlertReason = AlertReason.OPENED
    now_ms: int = NOW_MS


def _slow() -> Scene:
    one = incident(
        title="gpu-0417 device 3 (rank 811): slow (compute) in llm-70b",
        summary="rank 811 (gpu-0417 device 3) computes 23.0 % longer than its role peers; "
        "the job would gain 18.0 % of its step without it.",
        runner_up="its port mlx5_3 (11 %)",
    )  # fmt: skip
    earlier = incident(id="old", opened_at_ms=OPENED_MS - 3 * DAY, state=IncidentState.RESOLVED)
    cost = cost_of(
        loss_gpu_hours_per_hour=187.0, gpus=1024, restart_minutes=8.0, checkpoint_at_ms=NOW_MS - 14 * MINUTE,
        now_ms=NOW_MS, horizon_hours=1.0,
    )  # fmt: skip
    drain = Action(
        id="a1", incident=one.id, revision=3, kind="drain", node="gpu-0417", mode="dry_run", state="done",
        actor="rule:slow", reason="", created_at_ms=NOW_MS, updated_at_ms=NOW_MS,
    )  # fmt: skip
    facts = Facts(
        place=Place("U12", "HX-2209", "1650123004417", "10.0.4.17", "R17", "Z3"), owner="wang", job_gpus=1024,
        checkpoint_at_ms=NOW_MS - 14 * MINUTE, spares=3, cost=cost,
        changes=[ChangedFact(3, "power_limit", "700 W", "500 W", NOW_MS - 5 * HOUR)], earlier=[earlier],
        actions=[drain], nodes=["gpu-0417"], peers=[779, 843],
        evidence={"effect": 0.23, "peers": 31, "channel": "compute", "window_steps": [81240, 81280]},
        coverage=(1021, 1024),
    )  # fmt: skip
    return Scene(one, facts)


def _cooling() -> Scene:
    nodes = [f"gpu-{400 + n:04d}" for n in range(31)]
    one = incident(
        kind="cooling", class_=None, scope="cooling_zone", severity=Severity.P2, node=None, device=None, rank=None,
        title="31 nodes of cooling zone Z3: cooling fails in llm-70b, 31 consequences", targets=("Z3",),
        summary="Cooling zone Z3 warms: its 31 nodes are 9.4 K hotter than their power and peers explain.",
        confidence=0.9, runner_up=None, gpus_affected=248, loss_gpu_hours_per_hour=36.0, lost_gpu_hours=1.2,
    )  # fmt: skip
    return Scene(one, Facts(owner="wang", job_gpus=1024, nodes=nodes, checkpoint_at_ms=NOW_MS - 14 * MINUTE, spares=3,
                            coverage=(1024, 1024)))  # fmt: skip


def _hang() -> Scene:
    one = incident(
        kind="hang", class_=None, scope="rank", severity=Severity.P1, progress=Progress.STOPPED, rank=213,
        node="gpu-0026", device=5, title="gpu-0026 device 5 (rank 213): hangs in llm-70b",
        summary="Ranks 0-212, 214-1023 wait in all_reduce 48213 of tp:9f2c11ab04de for rank 213, which never arrived; "
        "its stack stands at data/loader.py:118 in __next__ (confidence 96%).",
        confidence=0.96, runner_up="a stuck transfer on mlx5_5 of gpu-0026", loss_gpu_hours_per_hour=1024.0,
        lost_gpu_hours=36.0, blames_hardware=False,
    )  # fmt: skip
    return Scene(one, Facts(place=Place("U3", "HX-1120", "1650123001205", "10.0.0.26", "R02", "Z1"), owner="li",
                            job_gpus=1024, checkpoint_at_ms=NOW_MS - 41 * MINUTE, spares=3, nodes=["gpu-0026"],
                            coverage=(1024, 1024)))  # fmt: skip


def _xid79() -> Scene:
    one = incident(
        kind="device_error", class_=None, scope="device", severity=Severity.P1, progress=Progress.STOPPED, rank=90,
        node="gpu-0011", device=2, title="gpu-0011 device 2 (rank 90): device error in llm-70b",
        summary="gpu-0011 device 2: Xid 79, the GPU has fallen off the bus (Xid 154 followed); drain and reboot"
        " the node.",
        confidence=0.98, runner_up=None, loss_gpu_hours_per_hour=1024.0, lost_gpu_hours=70.0,
    )  # fmt: skip
    drain = Action(
        id="5e1f-drain", incident=one.id, revision=3, kind="drain", node="gpu-0011", mode="approve", state="proposed",
        actor="rule:device_error", reason="", created_at_ms=NOW_MS, updated_at_ms=NOW_MS,
    )  # fmt: skip
    return Scene(one, Facts(place=Place("U20", "HX-0911", "1650123000911", "10.0.0.11", "R01", "Z1"), owner="li",
                            job_gpus=1024, checkpoint_at_ms=NOW_MS - 6 * MINUTE, spares=0, nodes=["gpu-0011"],
                            actions=[drain], coverage=(1016, 1024)))  # fmt: skip


def _sdc() -> Scene:
    one = incident(
        kind="sdc_precursor", class_=None, scope="device", severity=Severity.P3, progress=Progress.UNKNOWN, rank=None,
        job=None, run=None, node="gpu-0333", device=7, title="gpu-0333 device 7: signs of silent data corruption",
        summary="gpu-0333 device 7 shows several weak signs that precede silent data corruption: corrected ECC in 19 "
        "hours of the week, 3 row remaps, PCIe replays.",
        confidence=0.61, runner_up=None, blames_hardware=False, gpus_affected=1, loss_gpu_hours_per_hour=None,
        lost_gpu_hours=None,
    )  # fmt: skip
    return Scene(one, Facts(place=Place("U9", None, "1650123033307", None, "R14", None), nodes=["gpu-0333"]))


def _loss_spike() -> Scene:
    one = incident(
        kind="loss_spike", class_=None, scope="job", severity=Severity.P3, progress=Progress.PROGRESSING, rank=None,
        node=None, device=None, title="llm-70b: loss spike", blames_hardware=False, confidence=None, runner_up=None,
        summary="Loss of llm-70b is 9.61 at step 81302, 4.6 times its recent level 2.09.",
        loss_gpu_hours_per_hour=None, lost_gpu_hours=None, targets=("llm-70b",),
    )  # fmt: skip
    return Scene(one, Facts(owner="wang", job_gpus=1024, checkpoint_at_ms=NOW_MS - 14 * MINUTE, coverage=(700, 1024)))


def _blind() -> Scene:
    one = incident(
        kind="blind", class_=None, scope="pipeline", severity=Severity.P2, progress=Progress.UNKNOWN, job=None,
        run=None, node=None, device=None, rank=None, title="Flightwatch is blind", blames_hardware=False,
        confidence=None,
        summary="Flightwatch is blind since 2026-11-30 03:31 UTC: the pipeline is 7 min behind. Silence of nodes is "
        "not judged and nothing is done until it caught up.",
        runner_up=None, gpus_affected=None, loss_gpu_hours_per_hour=None, lost_gpu_hours=None,
    )  # fmt: skip
    return Scene(one, Facts())


def _resolved() -> Scene:
    scene = _slow()
    closed = replace(
        scene.incident, state=IncidentState.RESOLVED, closed_at_ms=OPENED_MS + 42 * MINUTE, lost_gpu_hours=131.0
    )  # fmt: skip
    return replace(scene, incident=closed, reason=AlertReason.RESOLVED, now_ms=OPENED_MS + 43 * MINUTE)


def _reminder() -> Scene:
    return replace(_hang(), reason=AlertReason.REMINDER, now_ms=OPENED_MS + 15 * MINUTE)


SCENES: dict[str, Scene] = {
    "slow": _slow(), "cooling": _cooling(), "hang": _hang(), "xid79": _xid79(), "sdc": _sdc(),
    "loss_spike": _loss_spike(), "blind": _blind(), "resolved": _resolved(), "reminder": _reminder(),
}  # fmt: skip

from __future__ import annotations

import hashlib
import hmac
import json

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import ConfigError
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.actuators.registry import actuators_of
from flightwatch.incidents.actuators.webhook import WebhookActuator
from flightwatch.incidents.contract import ActionRequest, Actuator
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from tests.incidents.actuators.stand_in import Server

WISH = ActionRequest("a1", "replace_rank", "n1", "slow", "ann", "i1", "job", 7)


def _actuator(server: Server, secret: str = "key") -> WebhookActuator:
    outgoing = Outgoing(OutgoingSettings(allowed_addresses=("127.0.0.1",), timeout_seconds=2))
    return WebhookActuator(outgoing, f"{server.url}/act", secret, ("replace_rank",), ManualClock(1_700_000_000_000))


def test_the_request_is_exact_and_signed() -> None:
    with Server() as server:
        server.answers["POST /act"] = (200, "thanks")
        outcome = _actuator(server).apply(WISH)
    assert (outcome.ok, outcome.changed) == (True, True)
    got = server.got[0]
    assert json.loads(got.body) == {
        "version": 1, "action": "a1", "kind": "replace_rank", "node": "n1", "job": "job", "rank": 7, "incident": "i1",
        "actor": "ann", "reason": "slow",
    }  # fmt: skip
    assert got.headers["idempotency-key"] == "a1"
    seconds, _, signature = got.headers["flightwatch-signature"].partition(",v1=")
    assert seconds == "t=1700000000"
    assert signature == hmac.new(b"key", b"1700000000." + got.body, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("status", "ok", "changed"), [(204, True, True), (409, True, False), (500, False, False), (302, False, False)]
)
def test_the_status_decides(status: int, ok: bool, changed: bool) -> None:
    with Server() as server:
        server.answers["POST /act"] = (status, "said")
        outcome = _actuator(server, "").apply(WISH)
    assert (outcome.ok, outcome.changed) == (ok, changed)
    assert "flightwatch-signature" not in server.got[0].headers


def test_a_receiver_that_is_away_is_one_sentence() -> None:
    with Server() as server:
        actuator = _actuator(server)
    assert "did not answer" in actuator.apply(WISH).message
    assert actuator.nodes() is None


def test_settings_choose_the_actuators() -> None:
    outgoing, clock = Outgoing(OutgoingSettings()), ManualClock(0)
    assert actuators_of(ActionSettings(), outgoing, clock) == []
    settings = ActionSettings(scheduler="slurm", webhook_url="http://a/b", live_job_kinds=("drop_replica",))
    chosen = actuators_of(settings, outgoing, clock)
    assert [(one.name, tuple(one.kinds)) for one in chosen] == [
        ("slurm", ("drain", "return")),
        ("webhook", ("drop_replica",)),
    ]
    assert all(isinstance(one, Actuator) for one in chosen)
    rest = actuators_of(ActionSettings(scheduler="slurm_rest", slurm_url="http://a/b"), outgoing, clock)
    kubernetes = actuators_of(ActionSettings(scheduler="kubernetes", kubernetes_url="http://a"), outgoing, clock)
    assert [rest[0].name, kubernetes[0].name] == ["slurm", "kubernetes"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (ActionSettings(mode="yes"), "actions.mode"),
        (ActionSettings(automatic_kinds=("slow",)), "without a person"),
        (ActionSettings(scheduler="lsf"), "actions.scheduler"),
        (ActionSettings(scheduler="slurm_rest"), "actions.slurm_url must be set"),
        (ActionSettings(scheduler="webhook"), "actions.webhook_url must be set"),
        (ActionSettings(live_job_kinds=("reboot",)), "actions.live_job_kinds"),
        (ActionSettings(live_job_kinds=("drop_replica",)), "actions.webhook_url must be set"),
        (ActionSettings(scheduler="kubernetes", kubernetes_ca_file="/nonexistent"), "kubernetes_ca_file"),
    ],
)
def test_a_wrong_setting_is_named(settings: ActionSettings, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        actuators_of(settings, Outgoing(OutgoingSettings()), ManualClock(0))

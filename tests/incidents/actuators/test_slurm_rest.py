from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flightwatch.incidents.actuators.slurm import SlurmCommand, SlurmRest, view_of
from flightwatch.incidents.contract import ActionRequest
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from tests.incidents.actuators.stand_in import Got, Server

WISH = ActionRequest("a1", "drain", "n1", "too hot", "rule:overheat")


@contextmanager
def _rest(server: Server) -> Iterator[SlurmRest]:
    outgoing = Outgoing(OutgoingSettings(allowed_addresses=(f"127.0.0.1:{server.port}",)))
    yield SlurmRest(outgoing, f"{server.url}/slurm/v0.0.41", "slurm", "jwt-secret")


def _node(state: object, reason: str = "") -> dict[str, object]:
    return {"nodes": [{"name": "n1", "state": state, "reason": reason}], "errors": []}


def test_a_drain_is_one_post_with_state_and_reason() -> None:
    with Server() as server, _rest(server) as rest:
        server.answers["GET /slurm/v0.0.41/node/n1"] = (200, _node(["IDLE"]))
        server.answers["POST /slurm/v0.0.41/node/n1"] = (200, {"errors": []})
        outcome = rest.apply(WISH)
    assert (outcome.ok, outcome.changed) == (True, True), outcome.message
    post: Got = server.got[-1]
    assert json.loads(post.body) == {"state": ["DRAIN"], "reason": "flightwatch:a1 too hot"}
    assert post.headers["x-slurm-user-token"] == "jwt-secret"
    assert post.headers["x-slurm-user-name"] == "slurm"


def test_what_slurm_says_no_to_is_told() -> None:
    with Server() as server, _rest(server) as rest:
        server.answers["GET /slurm/v0.0.41/node/n1"] = (200, _node(["IDLE"]))
        server.answers["POST /slurm/v0.0.41/node/n1"] = (200, {"errors": [{"error": "Access denied"}]})
        outcome = rest.apply(WISH)
    assert not outcome.ok
    assert outcome.message == "Slurm refused: Access denied"


@pytest.mark.parametrize("answer", [(500, {}), (401, {"errors": [{"error": "bad token"}]}), (200, ["x"]), (200, {})])
def test_an_answer_that_says_nothing_is_no_list_of_nodes(answer: tuple[int, object]) -> None:
    with Server() as server, _rest(server) as rest:
        server.answers["GET /slurm/v0.0.41/nodes/"] = answer
        server.answers["GET /slurm/v0.0.41/node/n1"] = answer
        assert rest.nodes() is None
        outcome = rest.apply(WISH)
        assert not outcome.ok
        assert "jwt-secret" not in outcome.message
        assert [one.method for one in server.got if one.method == "POST"] == []


def test_a_closed_port_is_one_sentence() -> None:
    with Server() as server:
        url = server.url
    outgoing = Outgoing(OutgoingSettings(allowed_addresses=("127.0.0.1",), timeout_seconds=2))
    outcome = SlurmRest(outgoing, f"{url}/slurm/v0.0.41", "slurm", "jwt-secret").apply(WISH)
    assert not outcome.ok
    assert outcome.message.startswith("Slurm does not answer")


@pytest.mark.parametrize(
    ("state", "reason", "usable", "out", "ours"),
    [
        ("idle", "none", True, False, False),
        ("mixed", "none", True, False, False),
        ("allocated~", "none", True, False, False),
        ("idle*", "none", False, False, False),
        ("drained*", "flightwatch:a1 x", False, True, True),
        ("draining", "bad fan", False, True, False),
        ("down", "Not responding", False, False, False),
        ("unknown", "none", False, False, False),
        ("IDLE+DRAIN", "flightwatch:a1 x", False, True, True),
        ("DOWN+DRAIN+NOT_RESPONDING", "x", False, True, False),
        ("maint", "window", False, True, False),
        ("", "", False, False, False),
    ],
)
def test_states_are_read(state: str, reason: str, usable: bool, out: bool, ours: bool) -> None:
    view = view_of(state, reason)
    assert (view.usable, view.out, view.ours) == (usable, out, ours)


def test_a_missing_program_never_counts_as_healthy() -> None:
    command = SlurmCommand("/nonexistent/scontrol", "/nonexistent/sinfo")
    assert command.nodes() is None
    assert command.apply(WISH).message == "Slurm does not answer"

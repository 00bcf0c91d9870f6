from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flightwatch.incidents.actuators.kubernetes import ANNOTATION, LABEL, TAINT, Kubernetes
from flightwatch.incidents.contract import ActionRequest
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from tests.incidents.actuators.stand_in import Got, Server

DRAIN = ActionRequest("a1", "drain", "n1", "too hot", "rule:overheat")
RETURN = ActionRequest("a2", "return", "n1", "repaired", "ann")


class Cluster(Server):
    """Keeps nodes, merges patches as the API server does, and checks resource versions."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, dict[str, Any]] = {}
        self.answers["GET /api/v1/nodes"] = self._list
        self.conflicts = 0

    def add(self, name: str, **spec: Any) -> None:
        self.nodes[name] = {
            "metadata": {"name": name, "resourceVersion": "1", "labels": {"zone": "a"}, "annotations": {}},
            "spec": spec, "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }  # fmt: skip
        self.answers[f"GET /api/v1/nodes/{name}"] = lambda _: (200, self.nodes[name])
        self.answers[f"PATCH /api/v1/nodes/{name}"] = lambda got: self._patch(name, got)

    def _patch(self, name: str, got: Got) -> tuple[int, Any]:
        patch, node = json.loads(got.body), self.nodes[name]
        if self.conflicts:
            self.conflicts -= 1
            node["metadata"]["resourceVersion"] += "1"
            return 409, {"message": "the object has been modified"}
        if patch["metadata"].pop("resourceVersion") != node["metadata"]["resourceVersion"]:
            return 409, {"message": "the object has been modified"}
        _merge(node, patch)
        node["metadata"]["resourceVersion"] += "1"
        return 200, node

    def _list(self, got: Got) -> tuple[int, Any]:
        rows = []
        for name, node in self.nodes.items():
            if "labelSelector" in got.path and node["metadata"]["labels"].get(LABEL) != "drained":
                continue
            ready = "Ready" if node["status"]["conditions"][0]["status"] == "True" else "NotReady"
            rows.append({"cells": [name, ready + (",SchedulingDisabled" if node["spec"].get("unschedulable") else "")]})
        return 200, {"columnDefinitions": [{"name": "Name"}, {"name": "Status"}], "rows": rows, "metadata": {}}


def _merge(node: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            node.pop(key, None)
        elif isinstance(value, dict):
            _merge(node.setdefault(key, {}), value)
        else:
            node[key] = value


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.add("n1", taints=[{"key": "vendor", "effect": "NoSchedule"}])
        running.add("n2", unschedulable=True)
        yield running


@pytest.fixture
def kubernetes(cluster: Cluster, tmp_path: Path) -> Kubernetes:
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    outgoing = Outgoing(OutgoingSettings(allowed_addresses=(f"127.0.0.1:{cluster.port}",)))
    return Kubernetes(outgoing, cluster.url, token)


def test_a_node_is_cordoned_tainted_and_marked_and_never_evicts(cluster: Cluster, kubernetes: Kubernetes) -> None:
    outcome = kubernetes.apply(DRAIN)
    assert (outcome.ok, outcome.changed) == (True, True), outcome.message
    node = cluster.nodes["n1"]
    assert node["spec"]["unschedulable"] is True
    assert {one["key"]: one["effect"] for one in node["spec"]["taints"]} == {
        "vendor": "NoSchedule",
        TAINT: "NoSchedule",
    }
    assert node["metadata"]["labels"] == {"zone": "a", LABEL: "drained"}
    assert node["metadata"]["annotations"][ANNOTATION] == "flightwatch:a1 too hot"
    assert "NoExecute" not in cluster.got[-1].body.decode()
    assert cluster.got[-1].headers["authorization"] == "Bearer secret-token"
    assert cluster.got[-1].headers["content-type"] == "application/merge-patch+json"


def test_a_return_leaves_what_is_not_ours(cluster: Cluster, kubernetes: Kubernetes) -> None:
    kubernetes.apply(DRAIN)
    assert kubernetes.apply(RETURN).changed
    node = cluster.nodes["n1"]
    assert node["spec"] == {"taints": [{"key": "vendor", "effect": "NoSchedule"}]}
    assert node["metadata"]["labels"] == {"zone": "a"}
    assert node["metadata"]["annotations"] == {}


def test_a_cordon_of_others_is_respected(cluster: Cluster, kubernetes: Kubernetes) -> None:
    other = ActionRequest("a3", "return", "n2", "x", "ann")
    assert not kubernetes.apply(other).ok
    drained = kubernetes.apply(ActionRequest("a4", "drain", "n2", "x", "ann"))
    assert (drained.ok, drained.changed) == (True, False)
    assert all(one.method == "GET" for one in cluster.got)


def test_a_conflict_is_read_again_once(cluster: Cluster, kubernetes: Kubernetes) -> None:
    cluster.conflicts = 1
    assert kubernetes.apply(DRAIN).changed
    cluster.conflicts = 5
    assert not kubernetes.apply(RETURN).ok


def test_the_same_action_again_owns_its_cordon(cluster: Cluster, kubernetes: Kubernetes) -> None:
    kubernetes.apply(DRAIN)
    again = kubernetes.apply(DRAIN)
    assert (again.ok, again.changed) == (True, True)
    assert sum(one.method == "PATCH" for one in cluster.got) == 1


def test_all_nodes_are_told_with_whose_they_are(cluster: Cluster, kubernetes: Kubernetes) -> None:
    kubernetes.apply(DRAIN)
    cluster.add("n3")
    cluster.add("n4")
    cluster.nodes["n4"]["status"]["conditions"][0]["status"] = "Unknown"
    views = kubernetes.nodes() or {}
    assert {name: (view.usable, view.out, view.ours) for name, view in views.items()} == {
        "n1": (False, True, True), "n2": (False, True, False), "n3": (True, False, False), "n4": (False, False, False),
    }  # fmt: skip


@pytest.mark.parametrize(("status", "document"), [(403, {"message": "forbidden"}), (500, {}), (200, []), (200, "x")])
def test_an_api_server_that_refuses_says_nothing_about_nodes(
    cluster: Cluster, kubernetes: Kubernetes, status: int, document: Any
) -> None:
    cluster.answers["GET /api/v1/nodes"] = (status, document)
    cluster.answers["GET /api/v1/nodes/n1"] = (status, document)
    assert kubernetes.nodes() is None
    assert not kubernetes.apply(DRAIN).ok


def test_a_missing_token_is_one_sentence(cluster: Cluster, tmp_path: Path) -> None:
    outgoing = Outgoing(OutgoingSettings(allowed_addresses=("127.0.0.1",)))
    outcome = Kubernetes(outgoing, cluster.url, tmp_path / "absent").apply(DRAIN)
    assert not outcome.ok
    assert "cannot be read" in outcome.message


def test_names_that_are_paths_are_not_asked_for(cluster: Cluster, kubernetes: Kubernetes) -> None:
    for name in ("../secrets", "n1/status", "n1?x=1", ""):
        assert not kubernetes.apply(ActionRequest("a1", "drain", name, "x", "ann")).ok
    assert cluster.got == []

"""Topology and ownership captures: Slurm, fabric scans, NCCL, NetQ, Kubernetes, CSV; node lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.collectors.nodelist import expand_nodes, parse_indices
from flightwatch.core.errors import BadRecord

Read = Callable[[str], Any]


def test_slurm_tree_and_a_range_bomb(sample: Read) -> None:
    found = sample("slurm_topology.conf")
    leaves = {row["node"]: row["leaf_switch"] for row in found.of("inventory")}
    assert leaves == {"gpu01": "leaf1", "gpu02": "leaf1", "gpu10": "leaf1", "gpu11": "leaf2", "gpu12": "leaf2"}
    links = {(row["from_target"], row["to_target"]) for row in found.of("links")}
    assert {("leaf1", "spine1"), ("leaf2", "spine1"), ("gpu10", "leaf1")} <= links
    (error,) = found.errors
    assert error.startswith("line 5: ")
    assert "more than" in error


def test_slurm_job_devices_per_node(sample: Read) -> None:
    found = sample("slurm_job.txt")
    first, second, broken = found.of("events")
    assert (first["job"], first["run"], first["node"], first["attrs"]["devices"]) == (
        "4700_3",
        "2",
        "gpu01",
        "0,1,2,3,4,5,6,7",
    )
    assert (second["node"], second["attrs"]["devices"]) == ("gpu02", "0,1,2,5")
    assert (broken["code"], broken["severity"], broken["node"]) == ("job:node_fail", "error", None)


def test_slurm_json_numbers_in_objects(text: Read) -> None:
    found = text(
        '{"jobs": [{"job_id": {"number": 9, "set": true}, "job_state": ["RUNNING"], "nodes": "n[1-2]",'
        ' "restart_cnt": 1, "gres_detail": ["gpu:a:2(IDX:0-1)", "gpu:a:1(IDX:3)"]}, {"job_state": ["RUNNING"]}]}'
    )
    assert [(row["node"], row["run"], row["attrs"]["devices"]) for row in found.of("events")] == [
        ("n1", "1", "0,1"),
        ("n2", "1", "3"),
    ]
    assert found.errors


def test_fabric_scan_in_both_forms(sample: Read) -> None:
    scan = sample("ibnet.out")
    hosts = {row["node"]: (row["hca"], row["leaf_switch"]) for row in scan.of("inventory") if row["hca"]}
    assert hosts == {"host-1": ("mlx5_0", "leaf-01"), "host-2": ("mlx5_0", "leaf-01")}
    assert len(scan.of("links")) == 3
    listed = sample("ibnet_list.out")
    assert [(row["node"], row["leaf_switch"]) for row in listed.of("inventory") if row["hca"]] == [
        ("host-1", "leaf-01")
    ]
    assert listed.said("leaf-01/9 has no peer (4x ???)")


def test_adapters_without_switches_are_an_empty_topology_with_a_message(text: Read) -> None:
    found = text(
        'Ca\t1 "H-2"\t\t# "host-1 mlx5_0"\n[1](2) \t"S-1"[1]\t\t# lid 2 lmc 0 "MF0;leaf-01:X/U1" lid 1 4xNDR\n'
    )
    assert not found.rows
    assert found.said("the topology is empty")


def test_nccl_dump_with_names_ranks_and_nvlink(sample: Read, text: Read) -> None:
    found = sample("nccl_topo.xml")
    device, adapter = found.of("inventory")
    assert (device["device"], device["attrs"]["rank"], device["attrs"]["near_nic"]) == (3, "11", "mlx5_3")
    assert (adapter["hca"], adapter["port"]) == ("mlx5_3", 1)
    assert {row["kind"] for row in found.of("links")} == {"pcie", "nvlink"}
    cut = text('<system version="1"><cpu numaid="0"><pci busid="1" class="0x030200"/>')
    assert len(cut.of("inventory")) == 1
    assert cut.errors
    bomb = text('<!DOCTYPE s [<!ENTITY a "aaaa">]><system><cpu>&a;</cpu></system>')
    assert not bomb.rows
    assert bomb.errors


def test_netq(sample: Read) -> None:
    found = sample("netq.json")
    assert found.of("links")[0]["from_target"] == "host1/eth2"
    assert found.of("inventory")[0]["leaf_switch"] == "leaf1"
    assert found.said("does not have two ends")


def test_kubernetes_nodes_and_pods(sample: Read) -> None:
    nodes = sample("kubernetes_nodes.json")
    (node,) = nodes.of("inventory")
    assert (node["rack"], node["leaf_switch"], node["scale_up_domain"], node["model"]) == (
        "r9",
        "leaf-9",
        "u.1",
        "EX-100",
    )
    assert node["attrs"]["unschedulable"] == "true"
    assert nodes.codes == ["k8s:ready"]
    (pod,) = sample("kubernetes_pods.json").of("events")
    assert (pod["job"], pod["node"], pod["severity"]) == ("llama", "k1", "error")
    assert pod["attrs"]["index"] == "1"
    assert pod["attrs"]["accelerators"] == "8"


def test_inventory_csv(sample: Read) -> None:
    found = sample("inventory.csv")
    first, second = found.of("inventory")
    assert (first["device"], first["rack"], first["attrs"]) == (0, "r1", {"bmc": "192.0.2.11"})
    assert (second["device"], second["power_zone"], second["attrs"]) == (None, None, None)
    assert found.errors == ["line 4: device is not a number below 65536: 'x'"]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("node[01-03,10]", ["node01", "node02", "node03", "node10"]),
        ("a,b[1-2]", ["a", "b1", "b2"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("tux[9-11]", ["tux9", "tux10", "tux11"]),
        ("", []),
    ],
)
def test_node_lists(expression: str, names: list[str]) -> None:
    assert expand_nodes(expression) == names


@pytest.mark.parametrize(
    "expression",
    ["n[0-999999999]", "n[1-2", "n]1[", "n[3-1]", "n[a-b]", "n[0-300]m[0-300]", "n;rm", "n[1-99999][1-99]"],
)
def test_bad_node_lists_are_refused(expression: str) -> None:
    with pytest.raises(BadRecord):
        expand_nodes(expression)


def test_gres_indices() -> None:
    assert parse_indices("0-2,5") == [0, 1, 2, 5]
    assert parse_indices("N/A") == []

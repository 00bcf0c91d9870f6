"""Slurm's topology.yaml: the same rows as topology.conf."""

from __future__ import annotations

import io

from flightwatch.collectors.captures.registry import parsers
from flightwatch.core.protocols import CaptureContext, Note, Row

YAML = """\
---
# two topologies of one cluster
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: leaf[1-2]
      - switch: leaf1
        nodes: n[01-02]
      - switch: "leaf2"
        nodes: n03   # one only
- topology: blocks
  cluster_default: false
  block:
    block_sizes:
      - 4
    blocks:
      - block: b1
        nodes: n[04-05]
      - block: b2
        nodes: n[01-
"""


def test_trees_and_blocks() -> None:
    parser = next(parser for parser in parsers() if parser.recognise(YAML.encode()))
    assert parser.name == "slurm-topology"
    items = list(parser.parse(io.BytesIO(YAML.encode()), CaptureContext("x")))
    nodes = {
        item.values["node"]: item.values["leaf_switch"] or item.values["attrs"]
        for item in items
        if isinstance(item, Row) and item.table == "inventory"
    }
    assert nodes == {"n01": "leaf1", "n02": "leaf1", "n03": "leaf2", "n04": {"block": "b1"}, "n05": {"block": "b1"}}
    links = {
        (item.values["from_target"], item.values["to_target"], item.values["kind"])
        for item in items
        if isinstance(item, Row) and item.table == "links"
    }
    assert ("leaf1", "spine", "switch") in links
    assert ("n04", "b1", "block") in links
    errors = [item for item in items if isinstance(item, Note) and item.level == "error"]
    assert [note.where for note in errors] == ["line 21"]


def test_other_yaml_is_none() -> None:
    assert not any(parser.recognise(b"- name: x\n  nodes: 4\n") for parser in parsers())

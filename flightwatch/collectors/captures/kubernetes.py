"""`kubectl get nodes|pods -o json`: topology labels, versions, health of nodes; which job a pod belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, load_json, make_row
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.collectors.captures.two_forms import objects
from flightwatch.collectors.ownership.pod_labels import job_of
from flightwatch.core.clock import parse_iso_utc
from flightwatch.core.protocols import CaptureContext, Note, Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource

#: Node labels to inventory columns, best first (Topograph, NVIDIA GPU operator, clouds, common habits).
LABELS: Mapping[str, tuple[str, ...]] = {
    "rack": ("topology.kubernetes.io/rack", "rack", "topology.kubernetes.io/rack-id", "oci.oraclecloud.com/rack",
             "cloud.google.com/gce-topology-subblock"),
    "slot": ("topology.kubernetes.io/slot", "slot"),
    "leaf_switch": ("network.topology.nvidia.com/leaf", "network.topology.kubernetes.io/leaf",
                    "network.topology.kubernetes.io/switch", "topology.k8s.aws/network-node-layer-3", "leaf_switch"),
    "scale_up_domain": ("network.topology.nvidia.com/accelerator", "network.topology.kubernetes.io/accelerator",
                        "nvidia.com/gpu.clique", "scale_up_domain"),
    "cooling_zone": ("flightwatch/cooling-zone", "cooling_zone"),
    "power_zone": ("flightwatch/power-zone", "power_zone"),
    "model": ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "node.kubernetes.io/instance-type"),
    "rail": ("flightwatch/rail",),
    "plane": ("flightwatch/plane",),
}  # fmt: skip
_KEPT = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region", "network.topology.nvidia.com/spine",
         "network.topology.nvidia.com/core", "nvidia.com/gpu.count", "nvidia.com/gpu.family")  # fmt: skip
_FACTS = {"kernelVersion": "kernel", "osImage": "os", "containerRuntimeVersion": "container_runtime",
          "kubeletVersion": "kubelet"}  # fmt: skip
_LABEL_FACTS = {"nvidia.com/cuda.driver-version.full": "driver", "nvidia.com/gpu.machine": "machine"}
#: Conditions that are bad when "True"; Ready is bad otherwise.
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


class KubernetesParser:
    """Reads lists or single objects of kind Node and Pod."""

    name: ClassVar[str] = "kubernetes"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "inventory": ("model", "rack", "slot", "cooling_zone", "power_zone", "scale_up_domain", "leaf_switch", "rail",
                      "plane", "attrs"),
        "config_facts": ("name", "value"),
        "events": ("device", "job", "run", "rank", "source", "code", "severity", "message", "attrs"),
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "inventory.leaf_switch": "the node has none of the topology labels",
        "events.rank": "a pod has an index, kept in attrs.index; its ranks are the launcher's business",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head is JSON of the Kubernetes API with nodes or pods."""
        text = head_text(head).lstrip()
        return text.startswith("{") and '"apiVersion"' in text and '"metadata"' in text and (
            '"Node"' in text or '"Pod"' in text or '"NodeList"' in text or '"PodList"' in text)  # fmt: skip

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield inventory and facts of nodes, events of unhealthy nodes and of pods that belong to a job."""
        document, notes = load_json(stream)
        yield from notes
        if document is None:
            return
        items = document.get("items") if isinstance(document, dict) and "items" in document else document
        found = False
        for index, item in enumerate(objects(items)):
            kind = item.get("kind") or str(_dict(document).get("kind", "")).removesuffix("List")
            metadata = item.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if not isinstance(name, str):
                yield Note("error", f"items[{index}]", f"an object without a name: {shown(kind)}")
            elif kind == "Node" or "nodeInfo" in _dict(item.get("status")):
                found = True
                yield from self._node(name, item, context)
            elif kind == "Pod" or "containers" in _dict(item.get("spec")):
                found = True
                yield from self._pod(item, context)
        if not found:
            yield Note("error", "", "the document holds no node and no pod")

    def _node(self, name: str, item: Mapping[str, Any], context: CaptureContext) -> Iterator[Row]:
        labels = _strings(_dict(item.get("metadata")).get("labels"))
        values: dict[str, Value] = {"node": name}
        for column, names in LABELS.items():
            values[column] = next((labels[label] for label in names if labels.get(label)), None)
        status = _dict(item.get("status"))
        attrs = {label.rsplit("/", 1)[-1]: labels[label] for label in _KEPT if labels.get(label)}
        if _dict(item.get("spec")).get("unschedulable") is True:
            attrs["unschedulable"] = "true"
        yield make_row("inventory", self.CARRIES, context, {**values, "attrs": attrs or None})
        info = _strings(status.get("nodeInfo"))
        facts = {fact: info[key] for key, fact in _FACTS.items() if key in info}
        facts |= {fact: labels[key] for key, fact in _LABEL_FACTS.items() if key in labels}
        for fact, value in facts.items():
            yield make_row("config_facts", self.CARRIES, context, {"node": name, "name": fact, "value": value})
        for condition in objects(status.get("conditions")):
            kind, state = condition.get("type"), condition.get("status")
            bad = state == "True" if kind in _PRESSURES else state != "True" if kind == "Ready" else False
            if bad:
                message = f"node {name}: {kind} is {state}: {condition.get('message') or condition.get('reason') or ''}"
                yield self._event(name, f"k8s:{str(kind).lower()}", EventSeverity.ERROR, message[:500],
                                  {"reason": str(condition.get("reason") or "")},
                                  _time(condition.get("lastTransitionTime")), context)  # fmt: skip

    def _pod(self, item: Mapping[str, Any], context: CaptureContext) -> Iterator[Row]:
        metadata, status = _dict(item.get("metadata")), _dict(item.get("status"))
        owner = job_of(_strings(metadata.get("labels")), _strings(metadata.get("annotations")))
        if owner is None:
            return
        node = _dict(item.get("spec")).get("nodeName")
        phase = str(status.get("phase") or "Unknown")
        attrs = {key: str(metadata[key]) for key in ("namespace", "name", "uid") if key in metadata}
        attrs |= owner.attrs()
        attrs["accelerators"] = str(_accelerators(item))
        severity = EventSeverity.ERROR if phase == "Failed" else EventSeverity.INFO
        yield self._event(node if isinstance(node, str) else None, f"pod:{phase.lower()}", severity,
                          f"pod {metadata.get('name')} of job {owner.job} is {phase}", attrs,
                          _time(status.get("startTime")), context, owner.job)  # fmt: skip

    def _event(
        self, node: str | None, code: str, severity: EventSeverity, message: str, attrs: dict[str, str],
        ts: int | None, context: CaptureContext, job: str | None = None,
    ) -> Row:  # fmt: skip
        return make_row("events", self.CARRIES, context, {
            "ts": ts, "node": node, "job": job, "source": EventSource.SCHEDULER.value, "code": code,
            "severity": severity.value, "message": message, "attrs": attrs})  # fmt: skip


def _accelerators(item: Mapping[str, Any]) -> int:
    """Count the accelerators a pod's containers ask for: extended resources of the vendors."""
    total = 0
    for container in objects(_dict(item.get("spec")).get("containers")):
        limits = _dict(_dict(container.get("resources")).get("limits"))
        for name, count in limits.items():
            vendor, _, kind = str(name).partition("/")
            if kind and "." in vendor and any(word in kind.lower() for word in ("gpu", "npu", "mlu", "dcu", "ascend")):
                total += int(count) if str(count).isdecimal() and len(str(count)) < 5 else 0
    return total


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _strings(value: object) -> dict[str, str]:
    return {key: text for key, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}


def _time(value: object) -> int | None:
    try:
        return parse_iso_utc(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None

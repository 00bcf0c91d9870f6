"""Tables of what happened and what was said about it: events, findings, incidents, inventory."""

from __future__ import annotations

from flightwatch.core.catalogue.model import COMMON, Column, Table, col, ingested
from flightwatch.core.vocabulary import Lane

EVENTS = ingested(
    "events",
    "something that happened",
    Lane.EVENTS,
    730,
    col("device", "u16?", "", "device index; NULL when unknown (a PCI address is in attrs.pci_bus_id)"),
    col("job", "word?", "", "job"),
    col("run", "word?", "", "attempt"),
    col("rank", "i32?", "", "global rank"),
    col("source", "word", "", "kernel, comm, probe, agent, scheduler"),
    col("code", "word", "", "xid:79, ras:ue, nonfinite:forward, ..."),
    col("severity", "word", "", "debug, info, warning, error, critical"),
    col("message", "text", "", "the message as written by the source"),
    col("attrs", "map_text", "", "parsed details"),
)

FINDINGS = Table(
    "findings",
    "one statement of one detector about one target: on raise, on change, on clear",
    None,
    (
        *COMMON,
        col("id", "text", "", "deterministic id of the finding", "detectors"),
        col("detector", "word", "", "detector name", "detectors"),
        col("detector_version", "word", "", "version of method and thresholds", "detectors"),
        col("kind", "word", "", "what is wrong (closed list)", "detectors"),
        col("class", "word?", "", "kind slow: compute, link, host, storage, rack; imbalance: stage, data, expert",
            "detectors"),
        col("scope", "word", "", "what the finding is about (closed list)", "detectors"),
        col("job", "word?", "", "job", "detectors"),
        col("run", "word?", "", "attempt", "detectors"),
        col("device", "u16?", "", "device index", "detectors"),
        col("rank", "i32?", "", "global rank", "detectors"),
        col("hca", "word?", "", "adapter", "detectors"),
        col("port", "u16?", "", "port", "detectors"),
        col("targets", "list_text", "", "all targets when there are several", "detectors"),
        col("first_seen_at", "time?", "", "start of the evidence", "detectors"),
        col("detected_at", "time", "", "when the detector said so", "detectors"),
        col("first_step", "u64?", "", "first step affected", "detectors"),
        col("detected_step", "u64?", "", "step at which it was said", "detectors"),
        col("score", "f64", "", "higher is worse", "detectors"),
        col("threshold", "f64?", "", "score at which the detector speaks", "detectors"),
        col("severity", "word", "", "P1..P4, info", "detectors"),
        col("blames_hardware", "bool", "", "true only where a person should act on hardware", "detectors"),
        col("confidence", "f32?", "ratio", "0..1", "detectors"),
        col("expected_gain", "f32?", "ratio", "share of step time won by removing the target", "detectors"),
        col("summary", "text", "", "one sentence", "detectors"),
        col("state", "word", "", "raised, changed, cleared", "detectors"),
        col("evidence", "text", "", "JSON: peers, window, values, z, SQL", "detectors"),
        col("src_partition", "u16", "", "bus partition the row was read from", "ingest"),
        col("src_offset", "u64", "", "bus offset of the batch that carried the row", "ingest"),
    ),
    730,
)  # fmt: skip


def _projection(name: str, meaning: str, ttl_days: int | None, *columns: Column) -> Table:
    head = (
        col("ts", "time", "", "time of the change", "control"),
        col("cluster", "word", "", "cluster name", "control"),
    )
    tail = (col("version", "u64", "", "lease epoch and sequence of the writer", "control"),)
    return Table(name, f"{meaning} (projection of the control database)", None, head + columns + tail, ttl_days)


INCIDENTS = _projection(
    "incidents",
    "one version of one incident: findings with one cause",
    None,
    col("id", "text", "", "deterministic id", "control"),
    col("state", "word", "", "open, acknowledged, resolved, false_positive", "control"),
    col("severity", "word", "", "P1..P4", "control"),
    col("kind", "word", "", "kind of the root finding", "control"),
    col("title", "text", "", "one sentence", "control"),
    col("node", "word?", "", "node to blame", "control"),
    col("device", "u16?", "", "device to blame", "control"),
    col("job", "word?", "", "job affected", "control"),
    col("tenant", "word?", "", "owner of the job", "control"),
    col("opened_at", "time", "", "when it opened", "control"),
    col("updated_at", "time", "", "last change", "control"),
    col("closed_at", "time?", "", "when it closed", "control"),
    col("root_finding", "text?", "", "finding that is the cause", "control"),
    col("findings", "list_text", "", "all findings in it", "control"),
    col("gpus_affected", "u32?", "", "GPUs of the job or domain", "control"),
    col("lost_gpu_hours", "f64?", "GPU h", "loss so far", "control"),
    col("assignee", "word?", "", "who works on it", "control"),
)
INCIDENT_NOTES = _projection(
    "incident_notes", "one note on an incident", 730,
    col("incident", "text", "", "incident id", "control"),
    col("author", "word", "", "who wrote it", "control"),
    col("text", "text", "", "the note", "control"),
)  # fmt: skip
ALERT_DELIVERIES = _projection(
    "alert_deliveries", "one attempt to send one message", 730,
    col("incident", "text", "", "incident id", "control"),
    col("channel", "word", "", "channel name", "control"),
    col("attempt", "u16", "", "attempt number", "control"),
    col("status", "word", "", "intent, sent, failed, dropped", "control"),
    col("http_status", "u16?", "", "status the service answered", "control"),
    col("error", "text?", "", "why it failed", "control"),
    col("latency_ms", "f32?", "ms", "time the service took", "control"),
)  # fmt: skip
ACTIONS = _projection(
    "actions", "one state of one action on a node", 730,
    col("id", "text", "", "action id", "control"),
    col("incident", "text?", "", "incident id", "control"),
    col("node", "word", "", "target", "control"),
    col("kind", "word", "", "drain, return, replace_rank, ...", "control"),
    col("mode", "word", "", "dry_run, approve, automatic", "control"),
    col("state", "word", "", "proposed, approved, done, failed, undone", "control"),
    col("actor", "word", "", "person or rule", "control"),
    col("outcome", "text?", "", "what the actuator answered", "control"),
)  # fmt: skip
SILENCES = _projection(
    "silences", "one state of one silence", 730,
    col("id", "text", "", "silence id", "control"),
    col("matchers", "map_text", "", "field to value", "control"),
    col("author", "word", "", "who set it", "control"),
    col("reason", "text", "", "why", "control"),
    col("expires_at", "time?", "", "end", "control"),
)  # fmt: skip
AUDIT_LOG = _projection(
    "audit_log", "one write or denied attempt", 730,
    col("actor", "word", "", "who", "control"),
    col("action", "word", "", "what", "control"),
    col("target", "text", "", "on what", "control"),
    col("ok", "bool", "", "allowed and done", "control"),
    col("detail", "text", "", "arguments or reason", "control"),
    col("sql", "text?", "", "text of a query", "control"),
    col("rows", "u64?", "", "rows returned", "control"),
    col("elapsed_ms", "f32?", "ms", "time taken", "control"),
    col("address", "word?", "", "client address", "control"),
)  # fmt: skip
INCIDENT_EVIDENCE = _projection(
    "incident_evidence", "one row pinned as evidence of an incident", None,
    col("incident", "text", "", "incident id", "control"),
    col("moment", "word", "", "opening, peak, close", "control"),
    col("role", "word", "", "target, peer, domain", "control"),
    col("node", "word?", "", "node of the row", "control"),
    col("source_table", "word", "", "table the row came from", "control"),
    col("row", "text", "", "the row as JSON", "control"),
)  # fmt: skip

INVENTORY = ingested(
    "inventory",
    "what exists, one version of one thing",
    Lane.EVENTS,
    None,
    col("device", "u16?", "", "device index; NULL for the node itself"),
    col("hca", "word?", "", "adapter name of a port"),
    col("port", "u16?", "", "port number"),
    col("model", "word?", "", "product name"),
    col("serial", "word?", "", "serial number"),
    col("rack", "word?", "", "rack"),
    col("slot", "word?", "", "slot in the rack or node"),
    col("cooling_zone", "word?", "", "cooling zone"),
    col("power_zone", "word?", "", "power zone"),
    col("scale_up_domain", "word?", "", "NVLink, MTLink or HCCS domain"),
    col("leaf_switch", "word?", "", "leaf switch of a port or node"),
    col("rail", "word?", "", "rail of a port"),
    col("plane", "word?", "", "network plane of a port"),
    col("attrs", "map_text", "", "further facts (bmc, tenant, pci_bus_id)"),
)
LINKS = ingested(
    "links", "one edge of the topology", Lane.EVENTS, None,
    col("from_target", "word", "", "one end (switch, node/hca/port, device)"),
    col("to_target", "word", "", "other end"),
    col("kind", "word", "", "infiniband, ethernet, nvlink, pcie, rack, block"),
)  # fmt: skip
CONFIG_FACTS = ingested(
    "config_facts", "one configuration value of one node or device", Lane.EVENTS, 730,
    col("device", "u16?", "", "device index; NULL for the node"),
    col("name", "word", "", "driver, vbios, kernel, governor, mtu, ecc_mode, power_limit, ..."),
    col("value", "text", "", "value as text"),
)  # fmt: skip

TABLES = (
    EVENTS, FINDINGS, INCIDENTS, INCIDENT_NOTES, ALERT_DELIVERIES, ACTIONS, SILENCES, AUDIT_LOG, INCIDENT_EVIDENCE,
    INVENTORY, LINKS, CONFIG_FACTS,
)  # fmt: skip

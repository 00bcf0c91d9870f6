"""Tables of training: steps, ops, scalars, groups, flight-recorder entries, runs, profiles."""

from __future__ import annotations

from flightwatch.core.catalogue.model import Table, col, ingested
from flightwatch.core.vocabulary import Lane

RANK_STEPS = ingested(
    "rank_steps",
    "one rank and one step: what timing detectors read",
    Lane.OPS,
    30,
    col("job", "word", "", "job name as the scheduler knows it"),
    col("run", "word", "", "attempt of the job"),
    col("step", "u64", "", "optimizer step"),
    col("rank", "u32", "", "global rank"),
    col("device", "u16?", "", "device index on the node"),
    col("step_us", "f32?", "us", "duration of the step"),
    col("compute_us", "f32?", "us", "exclusive compute: device time outside communication"),
    col("forward_us", "f32?", "us", "forward phase (a span: may contain communication)"),
    col("backward_us", "f32?", "us", "backward phase (a span: may contain communication)"),
    col("optimizer_us", "f32?", "us", "optimizer phase"),
    col("data_us", "f32?", "us", "waiting for the data loader"),
    col("checkpoint_us", "f32?", "us", "blocking part of checkpointing"),
    col("launch_gap_us", "f32?", "us", "device idle because the host had not launched work"),
    col("comm_us", "f32?", "us", "communication, wait and transfer"),
    col("wait_us", "f32?", "us", "part of communication spent waiting for peers"),
    col("transfer_us", "f32?", "us", "part of communication in which data moved"),
    col("unattributed_us", "f32?", "us", "step time explained by neither compute nor communication"),
    col("comm_by_axis_us", "map_f64", "us", "communication by parallel axis (tp, cp, pp, dp, ep)"),
    col("overlap_ratio", "f32?", "ratio", "share of communication hidden behind compute"),
    col("tokens", "f64?", "tokens", "tokens this rank processed in the step"),
    col("work", "map_f64", "", "work counters (sum of squared lengths, expert tokens, bytes)"),
    col("mode", "word?", "", "sync or async"),
    col("loss", "f64?", "", "loss as the rank saw it"),
    col("grad_norm", "f64?", "", "gradient norm as the rank saw it"),
    col("nonfinite_count", "u32?", "", "non-finite values seen"),
)

OP_TIMINGS = ingested(
    "op_timings",
    "one op of one rank, aggregated over `steps` steps",
    Lane.OPS,
    3,
    col("level", "word", "", "phase, block or op; step arithmetic uses only phase"),
    col("job", "word", "", "job"),
    col("run", "word", "", "attempt"),
    col("step", "u64", "", "first step aggregated"),
    col("steps", "u32", "steps", "steps aggregated"),
    col("rank", "u32", "", "global rank"),
    col("device", "u16?", "", "device index"),
    col("kind", "word", "", "step, compute, comm, io, idle, checkpoint"),
    col("op", "word", "", "op name"),
    col("process_group", "word?", "", "process group of a collective"),
    col("axis", "word?", "", "parallel axis of a collective"),
    col("seq", "u64?", "", "first collective sequence number"),
    col("dur_us", "f64?", "us", "sum of durations"),
    col("dur_sq_us2", "f64?", "us2", "sum of squared durations"),
    col("span_us", "f64?", "us", "a time that contains communication"),
    col("wait_us", "f64?", "us", "sum of waiting inside"),
    col("min_us", "f32?", "us", "shortest"),
    col("max_us", "f32?", "us", "longest"),
    col("bytes", "u64?", "bytes", "bytes moved"),
    col("count", "u32", "", "calls"),
)

TRAINING_SCALARS = ingested(
    "training_scalars",
    "one named value of one step",
    Lane.SCALARS,
    730,
    col("job", "word", "", "job"),
    col("run", "word", "", "attempt"),
    col("step", "u64", "", "optimizer step"),
    col("rank", "i32", "", "global rank, -1 for the whole job"),
    col("name", "word", "", "loss, grad_norm, lr, loss_scale, skipped_iterations, ..."),
    col("value", "f64?", "", "value; NaN and infinities are kept as such"),
    col("nonfinite_count", "u32?", "", "non-finite elements behind the value"),
)

PROCESS_GROUPS = ingested(
    "process_groups",
    "one communication group",
    Lane.SCALARS,
    30,
    col("job", "word", "", "job"),
    col("run", "word", "", "attempt"),
    col("process_group", "word", "", "<desc>:<hash of the sorted global ranks>"),
    col("backend", "word?", "", "nccl, gloo, hccl, ..."),
    col("desc", "word", "", "description the framework gave"),
    col("members", "list_i32", "", "global ranks, sorted"),
)

COLLECTIVES = ingested(
    "collectives",
    "one flight-recorder entry",
    Lane.OPS,
    3,
    col("capture_id", "word", "", "the capture it belongs to"),
    col("job", "word", "", "job"),
    col("run", "word", "", "attempt"),
    col("rank", "u32", "", "global rank"),
    col("process_group", "word", "", "process group"),
    col("seq", "u64?", "", "collective sequence number"),
    col("op", "word", "", "operation"),
    col("is_p2p", "bool?", "", "a send or receive"),
    col("peer", "i32?", "", "global rank of the other side of a send or receive"),
    col("bytes", "u64?", "bytes", "input size"),
    col("dtype", "word?", "", "element type"),
    col("state", "word?", "", "scheduled, started, completed"),
    col("retired", "bool?", "", "the library has retired the entry"),
    col("record_id", "u64?", "", "record number in the dump"),
    col("created_at", "time?", "", "when it was enqueued"),
    col("started_at", "time?", "", "when it started on the device"),
    col("completed_at", "time?", "", "when it completed on the device"),
)

DUMPS = ingested(
    "dumps",
    "one rank's flight-recorder dump",
    Lane.SCALARS,
    30,
    col("capture_id", "word", "", "the capture it belongs to"),
    col("job", "word", "", "job"),
    col("run", "word", "", "attempt"),
    col("rank", "u32", "", "global rank"),
    col("status", "word", "", "ok, empty, missing, unreadable"),
    col("entries", "u32?", "", "entries in the dump"),
)

RUNS = ingested(
    "runs",
    "one phase of one attempt",
    Lane.EVENTS,
    730,
    col("job", "word", "", "job"),
    col("run", "word", "", "attempt"),
    col("phase", "word", "", "rendezvous, init, compile, restore, train, evaluate, checkpoint"),
    col("started_at", "time?", "", "start of the phase"),
    col("ended_at", "time?", "", "end of the phase"),
    col("attrs", "map_text", "", "tenant, owner, versions, world size"),
)

PLACEMENTS = ingested(
    "placements",
    "one rank's device and role, from ts on",
    Lane.EVENTS,
    None,
    col("job", "word", "", "job"),
    col("run", "word", "", "attempt"),
    col("rank", "u32", "", "global rank"),
    col("device", "u16?", "", "device index on the node"),
    *(
        col(axis, "i32?", "", f"coordinate on the {axis} axis; NULL or -1 when the axis is absent")
        for axis in ("tp", "cp", "pp", "vpp", "dp", "dp_replicate", "dp_shard", "ep", "etp")
    ),
    col("module", "word?", "", "module of a multi-module model"),
    col("valid_until", "time?", "", "end of the placement; NULL while in use"),
)

PROFILES = Table(
    "profiles",
    "one state of one profiler request (projection of the control database)",
    None,
    (
        col("ts", "time", "", "time of the state", "control"),
        col("cluster", "word", "", "cluster name", "control"),
        col("id", "text", "", "request id", "control"),
        col("version", "u64", "", "grows with each state", "control"),
        col("job", "word", "", "job", "control"),
        col("run", "word?", "", "attempt", "control"),
        col("ranks", "list_i32", "", "ranks profiled", "control"),
        col("steps", "u32", "steps", "steps profiled", "control"),
        col("first_step", "u64?", "", "first step profiled", "control"),
        col("state", "word", "", "requested, running, done, failed, stopped", "control"),
        col("requested_by", "word", "", "person or detector", "control"),
        col("reason", "text", "", "why it was asked for, or why it failed", "control"),
        col("rank", "i32?", "", "rank of one artifact", "control"),
        col("artifact", "text?", "", "where the trace is stored", "control"),
        col("sha256", "text?", "", "checksum of the trace", "control"),
        col("bytes", "u64?", "bytes", "size of the trace", "control"),
    ),
    730,
)

PROFILE_OPS = ingested(
    "profile_ops",
    "self time of one op in one rank's trace",
    Lane.OPS,
    90,
    col("id", "text", "", "profile request id"),
    col("job", "word", "", "job"),
    col("run", "word?", "", "attempt"),
    col("rank", "u32", "", "global rank"),
    col("op", "text", "", "op or kernel name"),
    col("kind", "word", "", "compute, comm, io, idle, host"),
    col("stack_hash", "u64?", "", "hash of the call stack"),
    col("calls", "u64", "", "calls"),
    col("self_us", "f64", "us", "time in the op outside its children"),
)

TABLES = (
    RANK_STEPS, OP_TIMINGS, TRAINING_SCALARS, PROCESS_GROUPS, COLLECTIVES, DUMPS, RUNS,
    PLACEMENTS, PROFILES, PROFILE_OPS,
)  # fmt: skip

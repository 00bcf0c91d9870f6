"""`flightwatch trace`: op self times, flame graph, difference and merged timeline of profiler traces."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flightwatch.collectors.captures.kineto import align, flame
from flightwatch.collectors.captures.kineto.ops import OpCost, RankTrace, difference
from flightwatch.collectors.captures.kineto.stream import TraceReader, open_trace
from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import ExitCode

HELP = "Analyse profiler traces (Kineto JSON, gzip or plain) of one or more ranks."
EPILOG = (
    "examples:\n  flightwatch trace traces/ --top 20\n"
    "  flightwatch trace --diff rank3.json.gz rank7.json.gz --format json\n"
    "  flightwatch trace rank3.json.gz --flame > rank3.folded\n"
    "  flightwatch trace traces/ --merge all-ranks.json"
)
_RANK = re.compile(r"rank[_\-]?(\d{1,7})", re.I)
_SUFFIXES = (".json", ".json.gz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="trace files, or folders of them")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--top", nargs="?", type=int, const=0, metavar="N", help="op self times (default); N: only the N most"
    )
    what.add_argument("--breakdown", action="store_true", help="compute, communication, copies, idle, host time")
    what.add_argument("--diff", nargs=2, metavar=("A", "B"), help="compare two files or folders op by op")
    what.add_argument("--flame", action="store_true", help="folded stacks; --format json: speedscope")
    what.add_argument("--critical", action="store_true", help="who arrived last at each collective, and who waited")
    what.add_argument("--merge", metavar="OUT", help="write one timeline of all ranks, clocks aligned by collectives")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    """Read the traces and print what was asked for."""
    if arguments.diff:
        sides = [_read_all([side]) for side in arguments.diff]
        _print_diff(difference(*(_costs(side) for side in sides)), arguments.format)
        return _exit_code([trace for side in sides for trace in side])
    if not arguments.paths:
        raise ConfigError("name at least one trace file or folder")
    if arguments.paths and isinstance(arguments.top, int) and arguments.top < 0:
        raise ConfigError("--top takes a number of ops, 0 for all")
    traces = _read_all(arguments.paths)
    if arguments.merge:
        _merge(traces, Path(arguments.merge))
    elif arguments.flame:
        _print_flame(traces, arguments.format)
    elif arguments.critical:
        _print_critical(traces, arguments.format)
    elif arguments.breakdown:
        _print_breakdown(traces, arguments.format)
    else:
        _print_top(traces, arguments.top or 0, arguments.format)
    return _exit_code(traces)


def _files(paths: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            files += sorted(one for one in path.rglob("*") if one.is_file() and one.name.endswith(_SUFFIXES))
        elif path.exists():
            files.append(path)
        else:
            raise ConfigError(f"{name}: no such file or folder")
    return files


def _read_all(paths: Sequence[str]) -> list[RankTrace]:
    """Read every trace; damage goes to stderr, the other ranks are still analysed."""
    traces = []
    for path in _files(paths):
        found = _RANK.findall(path.name)
        try:
            with path.open("rb") as stream:
                trace = RankTrace(str(path), int(found[-1]) if found else None).read(TraceReader(open_trace(stream)))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
        for note in trace.notes:
            print(f"{path}: {note.where + ': ' if note.where else ''}{note.text}", file=sys.stderr)
        traces.append(trace)
    return sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0, trace.source))


def _exit_code(traces: Sequence[RankTrace]) -> int:
    if any(note.level == "error" for trace in traces for note in trace.notes):
        return ExitCode.MALFORMED
    if not any(trace.tracks for trace in traces):
        print("flightwatch trace: no trace with events was found", file=sys.stderr)
        return ExitCode.UNRECOGNISED
    return ExitCode.DONE


def _costs(traces: Iterable[RankTrace]) -> list[OpCost]:
    return [cost for trace in traces for cost in trace.costs()]


def _json(rows: Any) -> None:
    json.dump(rows, sys.stdout, ensure_ascii=False)
    sys.stdout.write("\n")


def _print_top(traces: Sequence[RankTrace], limit: int, form: str) -> None:
    rows: list[dict[str, Any]] = []
    for trace in traces:
        costs = trace.costs()
        for cost in costs[:limit] if limit else costs:
            figures = {"calls": cost.calls, "self_us": round(cost.self_us, 3)}
            rows.append({"rank": trace.rank, "op": cost.op, "kind": cost.kind} | figures)
    if form == "json":
        _json(rows)
        return
    print(f"{'rank':>5} {'kind':8} {'calls':>8} {'self ms':>12}  op")
    for row in rows:
        figures_text = f"{row['calls']:>8} {row['self_us'] / 1000:>12.3f}"
        print(f"{_rank(row['rank']):>5} {row['kind']:8} {figures_text}  {row['op'][:100]}")


def _rank(rank: int | None) -> str:
    return "?" if rank is None else str(rank)


def _print_breakdown(traces: Sequence[RankTrace], form: str) -> None:
    rows = []
    ranks = [trace.rank for trace in traces]
    # Without the file, rows of the same or an unknown rank could not be told apart.
    ambiguous = len(ranks) > 1 and (None in ranks or len(set(ranks)) < len(ranks))
    for trace in traces:
        sums: dict[str, float] = dict.fromkeys(("compute", "comm", "io", "idle", "host"), 0.0)
        sums |= trace.busy_us()
        idle = trace.device_idle()
        sums["idle"] = idle.self_us if idle else 0.0
        row: dict[str, Any] = {"rank": trace.rank} | ({"file": trace.source} if ambiguous else {})
        rows.append(row | {f"{kind}_us": round(total, 3) for kind, total in sums.items()})
    if form == "json":
        _json(rows)
        return
    print(
        f"{'rank':>5} {'compute ms':>12} {'comm ms':>12} {'copies ms':>12} {'idle ms':>12} {'host ms':>12}"
        + ("  file" if ambiguous else "")
    )
    for row in rows:
        cells = " ".join(f"{row[f'{kind}_us'] / 1000:>12.1f}" for kind in ("compute", "comm", "io", "idle", "host"))
        print(f"{_rank(row['rank']):>5} {cells}" + (f"  {row['file']}" if ambiguous else ""))


def _print_diff(rows: Sequence[dict[str, Any]], form: str) -> None:
    if form == "json":
        _json(rows)
        return
    print(f"{'a ms':>12} {'b ms':>12} {'b - a ms':>12} {'b / a':>8}  op")
    for row in rows:
        ratio = "new" if row["ratio"] is None else f"{row['ratio']:.2f}"
        times = " ".join(f"{row[key] / 1000:>12.3f}" for key in ("a_self_us", "b_self_us", "delta_us"))
        print(f"{times} {ratio:>8}  {row['op'][:100]}")


def _print_flame(traces: Sequence[RankTrace], form: str) -> None:
    weights: Counter[tuple[str, ...]] = Counter()
    for trace in traces:
        weights.update(flame.folded(trace))
    if form == "json":
        _json(flame.speedscope(weights, " ".join(Path(trace.source).name for trace in traces)))
        return
    for line in flame.folded_lines(weights):
        print(line)


def _print_critical(traces: Sequence[RankTrace], form: str) -> None:
    rows = align.critical_ranks(traces)
    if form == "json":
        _json(rows)
        return
    print(f"{'critical':>8} {'longest wait ms':>16} {'transfer ms':>12}  collective")
    for row in rows:
        wait, op = max(row["wait_us"].values()) / 1000, f"{row['op'][:80]} #{row['index']}"
        print(f"{row['critical_rank']:>8} {wait:>16.3f} {row['transfer_us'] / 1000:>12.3f}  {op}")


def _merge(traces: Sequence[RankTrace], out: Path) -> None:
    shifts, notes = align.offsets(traces)
    for note in notes:
        print(note, file=sys.stderr)
    try:
        with ExitStack() as stack:
            target = stack.enter_context(out.open("w", encoding="utf-8"))
            streams = [stack.enter_context(Path(trace.source).open("rb")) for trace in traces]
            readers = [TraceReader(open_trace(stream)) for stream in streams]
            for _ in align.write_merged(target, list(zip(traces, readers, strict=True)), shifts):
                pass  # the damage was reported when the trace was read first
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from error
    print(f"{out}: {len(traces)} ranks on one axis; open it in Perfetto", file=sys.stderr)

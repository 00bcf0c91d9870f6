"""py-spy dumps: stacks of processes, grouped by equal stacks."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, load_json, make_row, read_document
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import EventSeverity, EventSource

#: Threads and frames kept per capture; a dump of a whole cluster is far smaller.
THREAD_LIMIT = 100_000
FRAME_LIMIT = 512

_PROCESS = re.compile(r"Process (\d{1,10}): (.{0,2000})")
_THREAD = re.compile(r'Thread (?P<id>\S{1,32}) \((?P<state>[a-z+ ]{1,40})\)(?:: "(?P<name>[^"]{0,200})")?')
_FRAME = re.compile(r"\s{2,}(?P<name>\S.{0,300}?) \((?P<place>[^()]{1,400})\)\s*$")
_RANK = re.compile(r"\brank[ _=:]{0,2}(\d{1,7})\b", re.IGNORECASE)

#: What a main thread waits for, by words in its frames, innermost first.
_WAITS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("input", re.compile(r"dataloader|data_loader|data/iterators|(?:queue|multiprocessing).{0,40}\bget\b|_next_data|"
                         r"_try_get_data|get \(queue\.py", re.I)),
    ("collective", re.compile(r"all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|all_to_all|distributed_c10d|"
                              r"isend|irecv|(?:^|\s)(?:send|recv)\b|_wait_for|Work\.wait", re.I)),
    ("checkpoint", re.compile(r"checkpoint|torch/serialization|state_dict|save_pretrained", re.I)),
    ("device", re.compile(r"synchronize|backward|\bitem\b|torch/cuda|_C\.|autograd", re.I)),
)  # fmt: skip


@dataclass(slots=True)
class StackDump:
    """One thread's stack.

    Attributes
    ----------
    thread: thread id as printed.
    name: thread name, "" when not printed.
    state: "idle", "active", "active+gil", ...
    frames: innermost first, as "function (file:line)".
    pid, rank: of the process, None when the dump does not say.
    """

    thread: str
    name: str
    state: str
    frames: list[str] = field(default_factory=list)
    pid: int | None = None
    rank: int | None = None

    @property
    def is_main(self) -> bool:
        """True for the thread that runs the training loop."""
        return self.name == "MainThread"

    @property
    def waits_for(self) -> str:
        """What the frames say the thread is in: input, collective, checkpoint, device or unknown."""
        for frame in self.frames[:12]:
            for word, pattern in _WAITS:
                if pattern.search(frame):
                    return word
        return "unknown"

    @property
    def digest(self) -> str:
        """Equal for equal stacks (functions and files, line numbers left out)."""
        shape = "\n".join(re.sub(r":\d+\)$", ")", frame) for frame in self.frames)
        return hashlib.sha256(shape.encode("utf-8", "replace")).hexdigest()[:12]


def parse_stacks(lines: Iterable[tuple[int, str]]) -> list[StackDump]:
    """Read `py-spy dump` text, one or many processes after one another."""
    found: list[StackDump] = []
    pid: int | None = None
    rank: int | None = None
    for _, line in lines:
        text = line[:4000]
        if process := _PROCESS.match(text.lstrip()):
            # A heading with the rank stands before the process; a rank in the command line is used only without one.
            pid = int(process[1])
            inside = re.search(r"(?:--(?:node_)?rank[= ]|\bRANK=)(\d{1,7})\b", process[2])
            rank = int(inside[1]) if inside and rank is None and "node_rank" not in inside[0] else rank
        elif thread := _THREAD.match(text.strip()):
            if len(found) >= THREAD_LIMIT:
                break
            found.append(StackDump(thread["id"], thread["name"] or "", thread["state"], pid=pid, rank=rank))
        elif (frame := _FRAME.match(text)) and found:
            if len(found[-1].frames) < FRAME_LIMIT:
                found[-1].frames.append(f"{frame['name']} ({frame['place']})")
        elif heading := _RANK.search(text):
            rank, pid = int(heading[1]), None
    return found


def stacks_of_json(value: object) -> list[StackDump]:
    """Read `py-spy dump --json`."""
    found: list[StackDump] = []
    for item in value if isinstance(value, list) else []:
        if not isinstance(item, dict) or not isinstance(item.get("frames"), list) or len(found) >= THREAD_LIMIT:
            continue
        state = ("active" if item.get("active") is True else "idle") + ("+gil" if item.get("owns_gil") is True else "")
        pid = item.get("pid")
        dump = StackDump(str(item.get("thread_id")), str(item.get("thread_name") or ""), state)
        dump.pid = pid if isinstance(pid, int) else None
        for frame in item["frames"][:FRAME_LIMIT]:
            if isinstance(frame, dict):
                place = f"{frame.get('short_filename') or frame.get('filename')}:{frame.get('line')}"
                dump.frames.append(f"{str(frame.get('name'))[:300]} ({place[:400]})")
        found.append(dump)
    return found


class PySpyDump:
    """Parser of py-spy dumps: one event per group of equal stacks."""

    name: ClassVar[str] = "py-spy"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "events": ("rank", "source", "code", "severity", "message", "attrs"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "ts": "a dump carries no time",
        "rank": "only where a heading or the command line names it, and one rank alone has the stack",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether this is a py-spy dump."""
        text = head_text(head)
        if text.lstrip().startswith("["):
            return '"frames"' in text and '"thread_id"' in text and '"owns_gil"' in text
        return any(
            _THREAD.match(line.strip()) and _FRAME.match(following)
            for line, following in zip(text.split("\n")[:400], text.split("\n")[1:401], strict=False)
        )

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one event per group of equal stacks, main threads first."""
        text, notes = read_document(stream)
        if text.lstrip().startswith("["):
            value, json_notes = load_json(io.BytesIO(text.encode()))
            yield from json_notes
            stacks = stacks_of_json(value)
        else:
            stacks = parse_stacks(enumerate(text.split("\n"), 1))
        groups: dict[tuple[bool, str], list[StackDump]] = {}
        for stack in stacks:
            groups.setdefault((not stack.is_main, stack.digest), []).append(stack)
        for (_, digest), members in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1])):
            yield self._row(digest, members, context)
        yield from notes

    def _row(self, digest: str, members: list[StackDump], context: CaptureContext) -> Row:
        first = members[0]
        ranks = sorted({stack.rank for stack in members if stack.rank is not None})
        attrs: dict[str, str] = {
            "digest": digest,
            "threads": str(len(members)),
            "state": first.state,
            "thread": first.name or first.thread,
            "waits_for": first.waits_for,
            "frames": "\n".join(first.frames)[:8000],
        }
        if ranks:
            attrs["ranks"] = ",".join(str(rank) for rank in ranks[:4096])
        pids = sorted({stack.pid for stack in members if stack.pid is not None})
        if pids:
            attrs["pids"] = ",".join(str(pid) for pid in pids[:4096])
        return make_row("events", self.CARRIES, context, {
            "rank": ranks[0] if len(ranks) == 1 else None,
            "source": EventSource.COMM.value,
            "code": "stack:main" if first.is_main else "stack:thread",
            "severity": EventSeverity.INFO.value,
            "message": first.frames[0] if first.frames else "a thread without Python frames",
            "attrs": attrs,
        })  # fmt: skip

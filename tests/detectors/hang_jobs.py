"""Simulated 3D-parallel jobs in which the host of one rank stops: what the flight recorders then hold."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from flightwatch.collectors.captures.flight_recorder import parse_dump
from flightwatch.core.hang_evidence import RankDump

Call = tuple[bool, str, int, str]
#: Newest entries that a recorder keeps.
RING = 60


@dataclass
class SimulatedJob:
    """Programs of all ranks: two steps of pipeline (send, receive), tensor and data parallel calls.

    `calls` holds (is point to point, group, sequence number, name as recorded) in program order.
    """

    tp: int
    pp: int
    dp: int
    groups: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    calls: dict[int, list[Call]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world = tuple(range(self.tp * self.pp * self.dp))
        self.groups["0"] = ("default_pg", world)
        for rank in world:
            for kind in ("tp", "pp", "dp"):
                self._group_of(kind, rank)
        for rank in world:
            self._program(rank)

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tp, rank // (self.tp * self.dp), rank // self.tp % self.dp

    def _group_of(self, kind: str, rank: int) -> str:
        axis = ("tp", "pp", "dp").index(kind)
        mine = [place for at, place in enumerate(self.place(rank)) if at != axis]
        same = [
            other
            for other in range(self.tp * self.pp * self.dp)
            if [place for at, place in enumerate(self.place(other)) if at != axis] == mine
        ]
        name = str(1 + 3 * same[0] + axis)
        self.groups[name] = (kind, tuple(same))
        return name

    def _program(self, rank: int) -> None:
        calls, numbers = self.calls.setdefault(rank, []), Counter[tuple[bool, str]]()
        stage = self.place(rank)[1]

        def call(group: str, name: str, p2p: bool = False) -> None:
            numbers[p2p, group] += 1
            calls.append((p2p, group, numbers[p2p, group], name))

        def layers() -> None:
            for _ in range(3 if self.tp > 1 else 0):
                call(self._group_of("tp", rank), "all_reduce")

        pipeline = self._group_of("pp", rank)
        for _ in range(2):
            for before, after in ((stage - 1, stage + 1), (stage + 1, stage - 1)):
                for _ in range(3):
                    if 0 <= before < self.pp:
                        call(pipeline, f"recv {stage}<-{before}", True)
                    layers()
                    if 0 <= after < self.pp:
                        call(pipeline, f"send {stage}->{after}", True)
            if self.dp > 1:
                call(self._group_of("dp", rank), "reduce_scatter")
            call("0", "all_reduce")

    def _meetings(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Return for each (rank, position) the calls that must meet for it to finish."""
        keys: dict[tuple[int, int], object] = {}
        for rank, calls in self.calls.items():
            pairs = Counter[tuple[str, str]]()
            for at, (p2p, group, seq, name) in enumerate(calls):
                key: object = (group, seq)
                if p2p:
                    word, ends = name.split(" ")
                    pair = ends.replace("->", ">") if word == "send" else ">".join(reversed(ends.split("<-")))
                    pairs[group, pair] += 1
                    key = (group, pair, pairs[group, pair])
                keys[rank, at] = key
        together: dict[object, list[tuple[int, int]]] = defaultdict(list)
        for where, key in keys.items():
            together[key].append(where)
        return {where: together[key] for where, key in keys.items()}

    def stopped(self, victim: int, at: int, ahead: int) -> dict[int, RankDump]:
        """Return all dumps after the host of a rank stopped before its call number `at`.

        Parameters
        ----------
        ahead: how many calls a host may be ahead of its device.
        """
        meetings = self._meetings()
        done, called = dict.fromkeys(self.calls, 0), dict.fromkeys(self.calls, 0)
        moving = True
        while moving:
            moving = False
            for rank, calls in self.calls.items():
                limit = min(at if rank == victim else len(calls), done[rank] + ahead, len(calls))
                moving, called[rank] = moving or limit > called[rank], max(limit, called[rank])
            for rank in self.calls:
                if done[rank] >= called[rank]:
                    continue
                meeting = meetings[rank, done[rank]]
                if all(done[other] >= place and called[other] > place for other, place in meeting):
                    moving = True
                    for other, place in meeting:
                        done[other] = max(done[other], place + 1)
        return {rank: self._dump(rank, done[rank], called[rank]) for rank in self.calls}

    def _dump(self, rank: int, done: int, called: int) -> RankDump:
        entries = [
            {"record_id": at, "pg_id": int(group), "process_group": [group, self.groups[group][0]],
             "collective_seq_id": 0 if p2p else seq, "p2p_seq_id": seq if p2p else 0, "profiling_name": f"nccl:{name}",
             "is_p2p": p2p, "time_created_ns": 10**18 + at, "input_sizes": [[4]], "input_dtypes": ["Float"],
             "state": "completed" if at < done else "scheduled", "retired": at < done, "frames": []}
            for at, (p2p, group, seq, name) in enumerate(self.calls[rank][:called])
        ]  # fmt: skip
        config = {name: {"name": name, "desc": desc, "ranks": str(list(members))}
                  for name, (desc, members) in self.groups.items() if rank in members}  # fmt: skip
        document = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries[-RING:]}
        return parse_dump(json.dumps(document).encode(), rank)

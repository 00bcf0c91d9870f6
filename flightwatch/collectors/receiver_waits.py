"""Splits a step's communication into wait and transfer where all members of its groups are on this node.

Ends of a collective coincide, so the member that waits least has only the transfer in its time:
transfer = the shortest time of the group, wait = own time - transfer. Over a step with several collectives of
one group the shortest sum stands for the sum of the shortest. Groups that span nodes are left unknown here:
one node does not see the other's times.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from flightwatch.core.protocols import Row

Key = tuple[str, str, int]
#: A step waits this long for its other ranks.
HOLD_SECONDS = 2.0
MOST_STEPS = 512
MOST_RANKS = 64


class WaitSplitter:
    """Holds rows of `rank_steps` until the ranks of their groups have come."""

    def __init__(self) -> None:
        self._members: OrderedDict[tuple[str, str, str], Sequence[int]] = OrderedDict()
        self._steps: OrderedDict[Key, tuple[float, dict[int, tuple[Row, Mapping[str, float]]]]] = OrderedDict()

    def learn(self, job: str, run: str, group: str, members: Sequence[int]) -> None:
        """Note who is in a group; groups larger than a node are of no use here."""
        if len(members) <= MOST_RANKS:
            self._members[job, run, group] = members
            while len(self._members) > MOST_STEPS:
                self._members.popitem(last=False)

    def add(self, row: Row, groups: Mapping[str, float], now_s: float) -> None:
        """Take a row and its communication by group in microseconds."""
        values = row.values
        key = (str(values["job"]), str(values["run"]), int(str(values["step"])))
        _, ranks = self._steps.setdefault(key, (now_s, {}))
        if len(ranks) < MOST_RANKS:
            ranks[int(str(values["rank"]))] = (row, groups)

    def ready(self, now_s: float) -> list[Row]:
        """Return rows whose groups are complete (with wait and transfer) or that have waited long enough."""
        rows: list[Row] = []
        for key in list(self._steps):
            since_s, ranks = self._steps[key]
            complete = self._split(key, ranks)
            if complete or now_s - since_s >= HOLD_SECONDS or len(self._steps) > MOST_STEPS:
                del self._steps[key]
                rows.extend(row for row, _ in ranks.values())
        return rows

    def _split(self, key: Key, ranks: Mapping[int, tuple[Row, Mapping[str, float]]]) -> bool:
        """Fill wait and transfer of rows whose every group is here; say whether that was so for all."""
        complete = True
        for row, groups in ranks.values():
            transfer_us = self._transfer_us(key, groups, ranks)
            own_us = row.values.get("comm_us")
            if transfer_us is None or not isinstance(own_us, (int, float)):
                complete = False
                continue
            transfer_us = min(transfer_us, float(own_us))
            row.values["transfer_us"] = round(transfer_us, 1)
            row.values["wait_us"] = round(float(own_us) - transfer_us, 1)
        return complete

    def _transfer_us(
        self, key: Key, groups: Mapping[str, float], ranks: Mapping[int, tuple[Row, Mapping[str, float]]]
    ) -> float | None:
        total = 0.0
        for group in groups:
            members = self._members.get((key[0], key[1], group))
            if members is None or not all(rank in ranks and group in ranks[rank][1] for rank in members):
                return None
            total += min(ranks[rank][1][group] for rank in members)
        return total if groups else None

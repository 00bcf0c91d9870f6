"""What keeps an incident quiet: silences, maintenance windows, and graver incidents that explain it away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope
from flightwatch.detectors.joint import DOMAINS, Places
from flightwatch.pipeline.control.incident_rows import Silence

#: Kinds that say that something is absent: they mean nothing while Flightwatch itself is blind.
ABSENCE = (Kind.DEAD_NODE, Kind.COVERAGE, Kind.SENSOR)


@dataclass(frozen=True, slots=True)
class Inhibition:
    """An open incident of kind `source` keeps incidents of the kinds `quiet` at its place quiet.

    Attributes
    ----------
    place: "domain" (the source's rack or zone holds the node), "node", or "any".
    """

    source: Kind
    quiet: tuple[Kind, ...]
    place: str


INHIBITIONS = (
    Inhibition(Kind.BLIND, ABSENCE, "any"),
    Inhibition(Kind.COOLING, (Kind.OVERHEAT, Kind.THROTTLE, Kind.SLOW, Kind.ANOMALY, Kind.SENSOR), "domain"),
    Inhibition(Kind.POWER, (Kind.THROTTLE, Kind.SLOW, Kind.ANOMALY), "domain"),
    Inhibition(
        Kind.DEAD_NODE,
        (Kind.SENSOR, Kind.LINK_FLAP, Kind.RDMA, Kind.ANOMALY, Kind.CLOCK_SKEW, Kind.CONFIG_DRIFT),
        "node",
    ),
)
_WIDE = (FindingScope.RACK.value, FindingScope.COOLING_ZONE.value, FindingScope.POWER_ZONE.value,
         FindingScope.LEAF_SWITCH.value, FindingScope.FACILITY.value)  # fmt: skip


def silence_for(
    row: Mapping[str, Any], targets: Sequence[str], silences: Iterable[Silence], places: Places
) -> str | None:
    """Return the id of the first silence that an incident matches, None when none does."""
    fields: dict[str, list[str]] = {
        name: [str(row[column])]
        for name, column in (
            ("id", "id"), ("cluster", "cluster"), ("severity", "severity"), ("kind", "kind"), ("class", "class_"),
            ("scope", "scope"), ("node", "node"), ("device", "device"), ("rank", "rank"), ("job", "job"),
            ("tenant", "tenant"), ("title", "title"),
        )
        if row[column] is not None
    }  # fmt: skip
    fields["target"] = list(targets)
    domains = places.domains_of(row["node"]) if row["node"] is not None else {}
    for kind in DOMAINS:
        named = [domains[kind]] if kind in domains else list(targets) if row["scope"] == kind else []
        if named:
            fields[kind] = named
    for silence in silences:
        if all(_matches(pattern, fields.get(name, [])) for name, pattern in silence.matchers.items()):
            return silence.id
    return None


def _matches(pattern: str, values: Sequence[str]) -> bool:
    # Only `*` is special: names of racks and jobs may hold brackets.
    plain = pattern.replace("[", "[[]").replace("?", "[?]")
    return any(fnmatchcase(value, plain) for value in values)


class Inhibitors:
    """The open incidents that keep others quiet, ready to be asked.

    Parameters
    ----------
    open_rows: rows of open incidents, `targets` parsed.
    """

    def __init__(self, open_rows: Iterable[Mapping[str, Any]], places: Places) -> None:
        self._anywhere: dict[Kind, list[str]] = {}
        self._by_node: dict[tuple[Kind, str, str], list[str]] = {}
        sources = {one.source for one in INHIBITIONS}
        for row in sorted(open_rows, key=lambda one: (one["opened_at_ms"], one["id"])):
            kind = Kind(row["kind"])
            if kind not in sources or row["stale"]:
                continue
            if kind is Kind.BLIND or row["scope"] == FindingScope.FACILITY.value:
                self._anywhere.setdefault(kind, []).append(row["id"])
            elif row["scope"] in _WIDE:
                for name in row["targets"]:
                    for node in places.members(row["scope"], name):
                        self._by_node.setdefault((kind, "domain", node), []).append(row["id"])
            elif row["node"] is not None:
                self._by_node.setdefault((kind, "node", row["node"]), []).append(row["id"])

    def inhibitor_of(self, row: Mapping[str, Any]) -> str | None:
        """Return the id of the incident that keeps this one quiet, None when none does."""
        kind = Kind(row["kind"])
        for rule in INHIBITIONS:
            if kind not in rule.quiet:
                continue
            found = list(self._anywhere.get(rule.source, ()))
            if row["node"] is not None:
                found += self._by_node.get((rule.source, rule.place, row["node"]), ())
            for id_ in found:
                if id_ != row["id"]:
                    return id_
        return None

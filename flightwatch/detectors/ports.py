"""RDMA ports: errors and congestion against peers at equal traffic, rates that fell, links that go down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import FloatArray, trailing_sum
from flightwatch.detectors.layout import domain_of_nodes
from flightwatch.detectors.port_peers import Crowd, against_peers, crowds, usual_of
from flightwatch.detectors.series import ALWAYS, Grid, Spell, cells, grid_of, spells
from flightwatch.detectors.statement import About, state_findings

ERRORS = (
    "symbol_errors_total", "rcv_errors_total", "xmit_discards_total", "out_of_sequence_total", "packet_seq_err_total",
    "ack_timeout_total", "retransmits_total", "fec_uncorrected_total", "link_recovered_total",
)  # fmt: skip
#: Cells of a rate over the hold time that make it last.
LASTING = 2
CONGESTION = ("cnp_handled_total", "cnp_sent_total", "ecn_marked_total", "pfc_rx_pause_total", "xmit_wait_total")


@dataclass(frozen=True)
class PortThresholds:
    """Defaults.

    Attributes
    ----------
    errors_per_minute, congestion_times: absolute floor of errors; congestion against the peers' usual rate.
    z: distance from peers in robust sigmas of log rates per traffic. hold_s, clear_s: for how long.
    flaps, flap_window_s: how often a link goes down inside the window before it is a flap.
    crowd_nodes: congestion that begins on ports of so many nodes at once is their switch's, or a job's pattern.
    rate_share: a link that runs at this share of its own best rate or less is degraded.
    """

    errors_per_minute: float = 10.0
    congestion_times: float = 10.0
    z: float = 6.0
    hold_s: float = 60.0
    clear_s: float = 600.0
    flaps: int = 2
    flap_window_s: float = 3600.0
    crowd_nodes: int = 3
    rate_share: float = 0.75


class PortDetector:
    """Finds kinds `rdma` (scope port, or leaf_switch) and `link_flap` (scope port).

    Does not see: what the adapter does not count; congestion on ports of several nodes that no switch explains (a job's
    own pattern); a port that was down from the start and stays down (unused ports are).
    """

    name = "ports"
    version = "1"
    needs = Needs(
        {"port_samples": ("ts", "node", "hca", "port", "state", "rate_gbps", "link_downed_total", "tx_bytes_total",
                          "rx_bytes_total",
                          *ERRORS, *CONGESTION),
         "inventory": ("node", "leaf_switch")},
        seconds=3600,
    )  # fmt: skip

    def __init__(self, thresholds: PortThresholds | None = None) -> None:
        self.thresholds = thresholds or PortThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        grid = grid_of(frames, "port_samples", ("node", "hca", "port"))
        if grid is None or grid.shape[0] < 3:
            return []
        return [
            *self._flaps(grid),
            *self._degraded(grid),
            *self._rates(grid, domain_of_nodes(frames, "leaf_switch")),
        ]

    def _flaps(self, grid: Grid) -> Iterable[Finding]:
        downs = np.zeros(grid.shape)
        lasting = np.zeros(grid.shape, dtype=bool)
        grown = grid.deltas("link_downed_total")
        if grown is not None:
            downs = np.nan_to_num(grown)
        codes, words = grid.words("state")
        if (codes >= 0).any():
            up = np.array([*(_is_up(word) for word in words), np.nan])[codes]
            for t in range(1, len(up)):
                up[t] = np.where(np.isnan(up[t]), up[t - 1], up[t])
            fell = np.zeros(grid.shape)
            fell[1:] = (np.diff(np.nan_to_num(up, nan=1.0), axis=0) < 0) & (downs[1:] == 0)
            downs = downs + fell
            was_up = np.maximum.accumulate(np.nan_to_num(up), axis=0) > 0
            lasting = was_up & (up == 0)
        # Down and up shows twice at most: a counter step in the sample in which the state says down, or the one after.
        width = cells(self.thresholds.flap_window_s, grid.interval_s)
        total = np.cumsum(downs, axis=0)
        if width < len(total):
            total[width:] = total[width:] - total[:-width]
        for spell in spells(total >= self.thresholds.flaps, 1, cells(self.thresholds.clear_s, grid.interval_s)):
            count = float(total[spell.said, spell.target])
            text = f"went down {count:.0f} times within {self.thresholds.flap_window_s / 60:.0f} min"
            yield from self._say(grid, spell, FindingKind.LINK_FLAP, text, count, Severity.P3, {"downs": count})

        off = cells(self.thresholds.clear_s, grid.interval_s)
        for spell in spells(lasting, cells(self.thresholds.hold_s, grid.interval_s, 3), off):
            text = "was up and is down"
            yield from self._say(grid, spell, FindingKind.LINK_FLAP, text, 1.0, Severity.P3, {"state": "down"})

    def _degraded(self, grid: Grid) -> Iterable[Finding]:
        """A link that came back at fewer lanes or a lower speed works, at part of its rate."""
        rate = grid.column("rate_gbps", forward_cells=ALWAYS)
        if rate is None:
            return
        best = np.maximum.accumulate(np.nan_to_num(rate), axis=0)
        low = (rate > 0) & (rate <= self.thresholds.rate_share * best)
        on, off = cells(self.thresholds.hold_s, grid.interval_s, 2), cells(120.0, grid.interval_s, 2)
        for spell in spells(low, on, off):
            now, before = float(rate[spell.said, spell.target]), float(best[spell.said, spell.target])
            text = f"runs at {now:g} Gbit/s, before at {before:g}"
            seen: dict[str, object] = {"rate_gbps": now, "before_gbps": before}
            yield from self._say(grid, spell, FindingKind.RDMA, text, before / now, Severity.P3, seen)

    def _rates(self, grid: Grid, switch_of: dict[str, str]) -> Iterable[Finding]:
        traffic = self._traffic(grid)
        errors, names = self._sum(grid, ERRORS)
        limits = self.thresholds
        off = cells(limits.clear_s, grid.interval_s, 2)
        per_minute = 60.0 / (grid.interval_s * cells(limits.hold_s, grid.interval_s))
        if errors is not None:
            z = against_peers(errors, traffic)
            hot = (z > limits.z) & (np.nan_to_num(errors) * per_minute >= limits.errors_per_minute)
            for spell in spells(hot, LASTING, off):
                rate = float(np.nanmean(errors[spell.begin : spell.said + 1, spell.target])) * per_minute
                text = f"has {rate:.0f} transport or link errors a minute, far above its peers at equal traffic"
                seen = {"per_minute": round(rate, 1), "counters": names}
                score = float(z[spell.said, spell.target])
                yield from self._say(grid, spell, FindingKind.RDMA, text, score, Severity.P3, seen)
        yield from self._congested(grid, traffic, errors, switch_of)

    def _congested(
        self, grid: Grid, traffic: FloatArray | None, errors: FloatArray | None, switch_of: dict[str, str]
    ) -> Iterable[Finding]:
        """Each counter apart: marks and ticks of waiting are no common unit."""
        limits = self.thresholds
        on, off = cells(limits.hold_s, grid.interval_s, 2), cells(limits.clear_s, grid.interval_s, 2)
        per_minute = 60.0 / (grid.interval_s * cells(limits.hold_s, grid.interval_s))
        counters = {name: grown for name in CONGESTION if (grown := self._grown(grid, name)) is not None}
        if not counters:
            return
        usual = {name: np.nan_to_num(usual_of(grown, traffic)) for name, grown in counters.items()}
        z = {name: against_peers(grown, traffic) for name, grown in counters.items()}
        hot = {
            name: (z[name] > limits.z)
            & (np.nan_to_num(grown) > limits.congestion_times * np.maximum(usual[name], 1.0))
            & (np.nan_to_num(grown) * per_minute >= 60 * limits.errors_per_minute)
            for name, grown in counters.items()
        }
        any_hot = np.logical_or.reduce(list(hot.values()))
        if errors is not None:
            any_hot &= ~(np.nan_to_num(errors) * per_minute >= limits.errors_per_minute)
        alone, together = crowds(
            list(spells(any_hot, LASTING, off)), grid.keys_D, switch_of, 3 * on, limits.crowd_nodes
        )  # fmt: skip
        for spell in alone:
            at = (spell.said, spell.target)
            name = max(hot, key=lambda one: (bool(hot[one][at]), float(z[one][at])))
            rate = float(np.nanmean(counters[name][spell.begin : spell.said + 1, spell.target])) * per_minute
            text = f"is congested: {rate:.0f} congestion marks or pauses a minute, its peers "
            text += f"{float(usual[name][at]) * per_minute:.0f}"
            seen = {"per_minute": round(rate, 1), "counters": [one for one in hot if hot[one][at]]}
            yield from self._say(grid, spell, FindingKind.RDMA, text, float(z[name][at]), Severity.P3, seen)
        for crowd in together:
            yield from self._say_switch(grid, crowd)

    def _say_switch(self, grid: Grid, crowd: Crowd) -> list[Finding]:
        """Ports of several nodes at once: their switch, or the pattern of a job, of which nothing is said."""
        if crowd.switch is None:
            return []
        last = max(crowd.spells, key=lambda spell: spell.said)
        nodes = sorted({str(grid.keys_D[spell.target][0]) for spell in crowd.spells})
        about = About(
            kind=FindingKind.RDMA, scope=FindingScope.LEAF_SWITCH, targets=(crowd.switch,), score=float(len(nodes)),
            threshold=float(self.thresholds.crowd_nodes), severity=Severity.P3, aspect="switch",
            summary=f"Leaf switch {crowd.switch} is congested: ports of {len(nodes)} of its nodes count far more marks "
            "or pauses than ports of like traffic elsewhere.",
            evidence={"nodes": nodes[:64]},
        )  # fmt: skip
        return state_findings(self.name, self.version, grid, last, about)

    def _grown(self, grid: Grid, name: str) -> FloatArray | None:
        """Return what a counter grew in the hold time before each cell; unknown where the cell itself is."""
        grown = grid.deltas(name)
        if grown is None:
            return None
        total = trailing_sum(np.nan_to_num(grown), cells(self.thresholds.hold_s, grid.interval_s))
        return np.where(np.isnan(grown), np.nan, total)

    def _sum(self, grid: Grid, names: tuple[str, ...]) -> tuple[FloatArray | None, list[str]]:
        parts = {name: grown for name in names if (grown := self._grown(grid, name)) is not None}
        if not parts:
            return None, []
        cube = np.stack(list(parts.values()))
        return np.where(np.isnan(cube).all(axis=0), np.nan, np.nansum(cube, axis=0)), list(parts)

    def _traffic(self, grid: Grid) -> FloatArray | None:
        parts = [part for name in ("tx_bytes_total", "rx_bytes_total") if (part := self._grown(grid, name)) is not None]
        return np.sum([np.nan_to_num(part) for part in parts], axis=0) if parts else None

    def _say(
        self,
        grid: Grid,
        spell: Spell,
        kind: FindingKind,
        text: str,
        score: float,
        severity: Severity,
        seen: dict[str, object],
    ) -> list[Finding]:
        node, hca, port = grid.keys_D[spell.target]
        where = f"{node} {hca or 'port'}" + (f"/{port}" if port is not None else "")
        about = About(
            kind=kind,
            scope=FindingScope.PORT,
            node=str(node),
            hca=hca,
            port=port,
            targets=(where,),
            summary=f"{where} {text}.",
            score=score,
            severity=severity,
            evidence=seen,
            aspect=next(iter(seen)),
        )
        return state_findings(self.name, self.version, grid, spell, about)


def _is_up(word: str) -> float:
    return 1.0 if "ACTIVE" in word.upper() or word.upper().endswith("UP") else 0.0

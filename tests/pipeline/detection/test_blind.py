"""The blind rule: said once, since when and why; over when the pipeline has caught up."""

from __future__ import annotations

from flightwatch.core.errors import TransientError
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState
from flightwatch.pipeline.detection.blind import BlindWatch

NOW_MS = 1_700_000_000_000


def test_lag_makes_blind_once_and_catching_up_ends_it() -> None:
    lag: float | None = 0.0
    watch = BlindWatch("c", 90, lambda: lag)
    assert not watch.look(NOW_MS, NOW_MS).blind
    lag = 300.0
    sight = watch.look(NOW_MS + 1000, NOW_MS)
    (finding,) = sight.said
    assert sight.blind
    assert (finding.kind, finding.scope, finding.state) == (
        FindingKind.BLIND, FindingScope.PIPELINE, FindingState.RAISED,
    )  # fmt: skip
    assert finding.first_seen_at == NOW_MS + 1000 - 300_000
    assert "300 s behind" in finding.summary
    assert not finding.blames_hardware
    assert watch.look(NOW_MS + 2000, NOW_MS).said == ()
    lag = 1.0
    (over,) = watch.look(NOW_MS + 60_000, NOW_MS + 59_000).said
    assert (over.id, over.state) == (finding.id, FindingState.CLEARED)
    assert watch.look(NOW_MS + 100_000, NOW_MS + 99_000).blind
    assert not watch.look(NOW_MS + 181_000, NOW_MS + 180_000).blind


def test_silence_counts_from_the_first_look() -> None:
    watch = BlindWatch("c", 90)
    assert not watch.look(NOW_MS, None).blind
    day_old = NOW_MS - 86_400_000
    assert not watch.look(NOW_MS, day_old).blind
    assert not watch.look(NOW_MS + 80_000, day_old).blind
    assert watch.look(NOW_MS + 91_000, day_old).blind
    (over,) = watch.look(NOW_MS + 92_000, NOW_MS + 91_500).said
    assert over.state == FindingState.CLEARED


def test_a_bus_that_does_not_answer_makes_blind() -> None:
    def away() -> float | None:
        raise TransientError("no broker")

    (finding,) = BlindWatch("c", 90, away).look(NOW_MS, NOW_MS).said
    assert "no broker" in finding.summary

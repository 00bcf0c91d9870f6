"""What a detector is: frames of rows in, findings out; pure, deterministic, higher score = worse.

Frames
------
A detector reads `Frames`: table name to `pandas.DataFrame`. One row is one row of that table, columns
are named as in the catalogue. Conventions every reader keeps and every detector relies on:

- times (`ts`, `valid_until`, ...) are float milliseconds since the epoch, NaN when unknown;
- numbers are float columns, NaN when unknown (counters up to 2^53 exactly; beyond, saturation still shows);
- words are `object` columns, None when unknown;
- map columns are flattened: `comm_by_axis_us` becomes `comm_by_axis_us.tp`, `comm_by_axis_us.dp`, ...;
- any column and any table may be absent, rows come in any order, may repeat and may be missing.

Time
----
`score` looks at all rows it is given and answers *as live*: every statement at time t uses rows up to t
only, and the result is the history of statements (raised, changed, cleared) inside the window. The
caller decides which of them are new.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pandas as pd

from flightwatch.core.catalogue import TABLES
from flightwatch.core.clock import iso_utc
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity

Frames: TypeAlias = Mapping[str, pd.DataFrame]

DAY_MS = 86_400_000
#: Columns of the findings table that hold a time.
_TIMES = ("ts", "received_at", "first_seen_at", "detected_at")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a detector reads.

    Attributes
    ----------
    tables: table name to the columns it uses; a missing one means fewer statements, never an error.
    steps: how many training steps of history it wants, 0 when it does not count in steps.
    seconds: how many seconds of history it wants.
    """

    tables: Mapping[str, tuple[str, ...]]
    steps: int = 0
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement of one detector about one target, in the shape of the findings table.

    Times are milliseconds since the epoch. `class_` is the column `class`. `score` is higher for
    worse; `threshold` is the score at which the detector speaks. `blames_hardware` is True only
    where a person should act on hardware. `expected_gain` is the share of step time won by removing
    the target. `evidence` must be JSON-serialisable. `aspect` is no column: it keeps the ids of two
    statements of one kind about one target apart (which counter, which sensor).
    """

    detector: str
    detector_version: str
    kind: FindingKind
    scope: FindingScope
    summary: str
    score: float
    severity: Severity
    detected_at: int | None
    cluster: str | None = None
    node: str | None = None
    class_: str | None = None
    job: str | None = None
    run: str | None = None
    device: int | None = None
    rank: int | None = None
    hca: str | None = None
    port: int | None = None
    targets: tuple[str, ...] = ()
    first_seen_at: int | None = None
    first_step: int | None = None
    detected_step: int | None = None
    threshold: float | None = None
    blames_hardware: bool = False
    confidence: float | None = None
    expected_gain: float | None = None
    state: FindingState = FindingState.RAISED
    evidence: Mapping[str, Any] = field(default_factory=dict)
    aspect: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        """Fill in the id when the caller left it empty."""
        if not self.id:
            object.__setattr__(self, "id", self._make_id())

    @property
    def target_key(self) -> str:
        """What the finding is about, as one comparable text."""
        parts: tuple[str | int | None, ...] = (
            self.job,
            self.run,
            self.node,
            self.device,
            self.rank,
            self.hca,
            self.port,
        )
        if self.node is None and self.rank is None:
            parts += self.targets
        return "/".join("" if part is None else str(part) for part in parts)

    def _make_id(self) -> str:
        # The day keeps statements about one target on different days apart; inside a day a
        # statement that comes back is the same one raised again, whoever computed it.
        day = -1 if self.detected_at is None else self.detected_at // DAY_MS
        text = "|".join((self.detector, self.kind.value, self.scope.value, self.target_key, self.aspect, str(day)))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def to_row(self) -> dict[str, Any]:
        """Return all columns of the findings table; times as int milliseconds, evidence as JSON text."""
        row: dict[str, Any] = dict.fromkeys(TABLES["findings"].column_names)
        for name in row:
            attribute = "class_" if name == "class" else name
            if hasattr(self, attribute):
                row[name] = getattr(self, attribute)
        row["ts"] = self.detected_at
        row["kind"], row["scope"] = self.kind.value, self.scope.value
        row["severity"], row["state"] = self.severity.value, self.state.value
        row["targets"] = list(self.targets)
        row["evidence"] = json.dumps(_plain(dict(self.evidence)), sort_keys=True, separators=(",", ":"))
        return {name: _plain(value) for name, value in row.items()}

    def to_json(self) -> str:
        """Return one JSON line: columns as `to_row`, times as ISO-8601 UTC, evidence as an object."""
        row = self.to_row()
        for name in _TIMES:
            row[name] = iso_utc(row[name])
        row["evidence"] = _plain(dict(self.evidence))
        return json.dumps(row, ensure_ascii=False, separators=(", ", ": "))


def _plain(value: Any) -> Any:
    """Turn numpy scalars into Python's, non-finite floats into None, mappings and sequences likewise."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@runtime_checkable
class Detector(Protocol):
    """Scores frames. Implementations are cheap to construct and hold thresholds only, never state."""

    name: str
    version: str
    needs: Needs

    def score(self, frames: Frames) -> list[Finding]:
        """Return the history of statements over the rows given, in order of detection.

        Never raises on missing tables, missing columns, NaN, empty or ragged input.
        """

"""Findings on their way to the bus: the ordinary path, numbered, so that a repeated send is stored once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from flightwatch import __version__
from flightwatch.core.clock import Clock
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import Lane, Topic
from flightwatch.detectors.contract import Finding
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.codec import encode

#: Columns ingest fills in.
_BY_INGEST = ("received_at", "src_partition", "src_offset")


class FindingPublisher:
    """Publishes findings on `flightwatch.findings`, keyed by node or job.

    Parameters
    ----------
    cluster: written where a finding's rows named none. timeout_seconds: longest wait for the bus.
    """

    def __init__(self, bus: Bus, clock: Clock, cluster: str, node: str, timeout_seconds: float = 30.0) -> None:
        self._bus, self._clock, self._cluster, self._node = bus, clock, cluster, node
        self._timeout = timeout_seconds
        self._agent_id = f"detect:{secrets.token_hex(8)}"
        self._spool_id = secrets.token_hex(8)
        self._seq = 0

    def publish(self, findings: Sequence[Finding]) -> None:
        """Send findings and wait until the bus has them.

        Raises
        ------
        TransientError: the bus is away; the same findings may be offered again.
        """
        for finding in findings:
            self._seq += 1
            header = BatchHeader(
                self._agent_id, self._spool_id, Lane.EVENTS.value, self._seq, self._node, self._cluster,
                self._clock.now_ms(), __version__,
            )  # fmt: skip
            value = encode(Batch(header, [self._row(finding)]))
            self._bus.publish(Topic.FINDINGS.value, finding.node or finding.job or "", value).result(self._timeout)

    def _row(self, finding: Finding) -> Row:
        values = {name: value for name, value in finding.to_row().items() if name not in _BY_INGEST}
        now_ms = self._clock.now_ms()
        values["ts"] = values["ts"] if values["ts"] is not None else now_ms
        values["detected_at"] = values["detected_at"] if values["detected_at"] is not None else now_ms
        values["cluster"] = values["cluster"] or self._cluster
        values["node"] = values["node"] or ""
        return Row("findings", values)

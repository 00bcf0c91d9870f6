"""Rows of `profiles`: each version of a request, and each of its traces, written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from flightwatch.pipeline.profiles.records import REQUEST_ENDED, Profiles
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.schema import arrow_schema


class Projection:
    """Follows the control database."""

    def __init__(self, profiles: Profiles, store: Store, cluster: str) -> None:
        self._profiles = profiles
        self._store = store
        self._cluster = cluster

    def step(self) -> None:
        """Write what changed. Raises TransientError when the store is away; the next step repeats it."""
        for request in self._profiles.unpublished():
            rows = rows_of(request, self._cluster)
            schema = arrow_schema("profiles")
            block = pa.Table.from_pylist(rows, schema=schema)
            self._store.insert_block("profiles", block, f"profiles:{request['id']}:{request['version']}")
            self._profiles.published(request["id"], request["version"])


def rows_of(request: Mapping[str, Any], cluster: str) -> list[dict[str, Any]]:
    """Return the row of the request's state and, once it has ended, one row for each stored trace."""
    failed = next((row["reason"] for row in request["ranks"] if row["state"] == "failed"), "")
    first = next((row["first_step"] for row in request["ranks"] if row["first_step"] is not None), None)
    base = {
        "ts": request["updated_at_ms"],
        "cluster": cluster,
        "id": request["id"],
        "version": request["version"],
        "job": request["job"],
        "run": request["run"] or None,
        "ranks": [row["rank"] for row in request["ranks"]],
        "steps": request["steps"],
        "first_step": first,
        "state": "running" if request["state"] == "stopping" else request["state"],
        "requested_by": request["requested_by"],
        "reason": failed or request["reason"],
    }
    traces = [
        base | {"rank": row["rank"], "artifact": row["artifact"], "sha256": row["sha256"], "bytes": row["bytes"],
                "first_step": row["first_step"], "reason": row["reason"] or request["reason"]}
        for row in request["ranks"]
        if row["state"] == "done" and request["state"] in REQUEST_ENDED
    ]  # fmt: skip
    return [base, *traces]

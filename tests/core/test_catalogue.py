"""The catalogue is complete, consistent and carries the public contract's names."""

from __future__ import annotations

import re

import pytest

from flightwatch.core.catalogue import CLICKHOUSE_TYPES, TABLES
from flightwatch.core.vocabulary import Lane

#: Units a column name may end in, and the unit text that goes with it.
SUFFIX_UNITS = {
    "_c": "C", "_w": "W", "_mv": "mV", "_mhz": "MHz", "_pct": "%", "_us": "us", "_ms": "ms", "_us2": "us2",
    "_ratio": "ratio", "_dbm": "dBm", "_ma": "mA", "_gbps": "Gbit/s", "_lpm": "l/min",
}  # fmt: skip


def test_every_table_of_the_contract_exists() -> None:
    expected = (
        "device_samples node_samples sensor_samples storage_samples facility_samples port_samples rank_steps op_timings"
        " training_scalars process_groups collectives dumps events findings incidents incident_notes alert_deliveries"
        " actions silences audit_log incident_evidence profiles profile_ops runs placements inventory links"
        " config_facts dead_letters data_gaps self_metrics schema_versions"
    )
    assert set(TABLES) == set(expected.split())


@pytest.mark.parametrize("name", sorted(TABLES))
def test_columns_are_documented_and_typed(name: str) -> None:
    table = TABLES[name]
    assert len(set(table.column_names)) == len(table.columns)
    assert table.meaning
    for column in table.columns:
        assert column.type in CLICKHOUSE_TYPES
        assert column.meaning, column.name
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name)
        for suffix, unit in SUFFIX_UNITS.items():
            if column.name.endswith(suffix):
                assert column.unit == unit, f"{name}.{column.name}"
        if column.counter:
            assert column.type in ("u32", "u64", "f64")


def test_ingested_tables_carry_time_origin_and_lane() -> None:
    for table in TABLES.values():
        if table.lane is not None:
            assert isinstance(table.lane, Lane)
            assert table.column_names[:4] == ("ts", "received_at", "cluster", "node")
            assert table.column_names[-2:] == ("src_partition", "src_offset")


def test_nullable_types_render_for_clickhouse() -> None:
    samples = TABLES["device_samples"]
    assert samples.column("temp_c").clickhouse_type == "Nullable(Float32)"
    assert samples.column("job").clickhouse_type == "LowCardinality(Nullable(String))"
    assert samples.column("ts").clickhouse_type == "DateTime64(3, 'UTC')"
    with pytest.raises(KeyError, match="device_samples has no column nope"):
        samples.column("nope")

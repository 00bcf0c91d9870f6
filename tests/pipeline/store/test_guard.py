from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flightwatch.core.errors import ConfigError, Refused
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.functions import SYNTAX, engine_functions, is_allowed, verdict, verdicts
from flightwatch.pipeline.store.guard import ADMIN_TABLES, MAXIMUM_LENGTH, TABLE_FUNCTIONS, VIEWER_TABLES, check
from flightwatch.pipeline.store.people import Limits, People, run_people_sql
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.store.sql_cases import ATTACKS, GOOD

LIMITS = Limits(seconds=1, memory_bytes=100_000_000, rows=1_000, result_bytes=5_000_000, read_rows=10**15, threads=1)


@pytest.mark.parametrize("query", ATTACKS)
def test_an_attack_is_refused_in_one_sentence(store: Store, query: str) -> None:
    with pytest.raises(Refused) as refusal:
        check(store, query)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


def test_attacks_leave_no_file() -> None:
    assert not Path("/tmp/flightwatch-attack").exists()


@pytest.mark.parametrize("query", GOOD)
def test_a_good_query_runs(store: Store, query: str) -> None:
    People(store).run(query, "json")


def test_every_public_table_can_be_read(store: Store) -> None:
    people = People(store)
    for table in sorted(VIEWER_TABLES):
        people.run(f"SELECT * FROM flightwatch.{table} LIMIT 1", "json")


def test_an_administrator_reads_more(store: Store) -> None:
    query = "select count() from flightwatch.audit_log"
    assert check(store, query, ADMIN_TABLES)
    with pytest.raises(Refused, match="audit_log"):
        check(store, query, VIEWER_TABLES)


def test_a_long_query_and_a_nul_are_refused(store: Store) -> None:
    with pytest.raises(Refused, match="longer"):
        check(store, "select " + "1," * MAXIMUM_LENGTH + "1")
    with pytest.raises(Refused, match="NUL"):
        check(store, "select 1 \x00")


def test_deep_nesting_is_refused_not_a_crash(store: Store) -> None:
    with pytest.raises(Refused):
        check(store, "select " + "(" * 5_000 + "1" + ")" * 5_000)


def test_every_function_of_this_engine_was_looked_at(store: Store) -> None:
    rows = store.rows("SELECT name, categories, is_aggregate, alias_to FROM system.functions")
    known, reviewed = engine_functions(rows), verdicts()
    assert sorted(set(known) - set(reviewed)) == []
    for name, (category, _) in known.items():
        if not reviewed[name][0]:
            continue
        original = next((str(row["alias_to"]) for row in rows if row["name"] == name and row["alias_to"]), name)
        assert verdict(original, category)[0], f"{name} is allowed in the list and refused by the rules"


def test_a_function_nobody_looked_at_is_refused() -> None:
    assert not is_allowed("functionOfTheNextVersion")
    assert not is_allowed("dictGetOrNull")
    assert not is_allowed("fileIf")
    assert is_allowed("quantileTDigestIfOrNull")


def test_no_refused_function_differs_from_an_allowed_one_only_by_case() -> None:
    reviewed = verdicts()
    allowed = {name.lower() for name, (word, _) in reviewed.items() if word}
    assert [name for name, (word, _) in reviewed.items() if not word and name.lower() in allowed] == []


def test_every_verdict_has_a_reason_and_the_syntax_words_are_there() -> None:
    assert all(reason for _, reason in verdicts().values())
    assert all(is_allowed(name) for name in SYNTAX)


def test_no_table_function_that_reads_is_also_an_allowed_function(store: Store) -> None:
    names = {row["name"] for row in store.rows("SELECT name FROM system.table_functions")}
    # `format` parses the text it is given; as a table function it is refused.
    assert {name for name in names if is_allowed(name)} <= {"format"}
    assert {name.lower() for name in names} >= TABLE_FUNCTIONS


_HARMLESS = st.sampled_from(
    ["1", "'a;b'", "node", "temp_c", "now()", "map('a', 1)['a']", "[1, 2]", "CAST(temp_c AS Nullable(Int8))", "NULL"]
)
_HARMFUL = st.sampled_from(
    ["file('/etc/passwd')", "(SELECT count() FROM system.tables)", "getSetting('max_threads')",
     "node IN (SELECT x FROM flightwatch.audit_log)", "node IN flightwatch.audit_log", "hostName()", "sleep(1)",
     "(SELECT c FROM url('http://127.0.0.1:1/', CSV, 'c String'))", "dictGet('a', 'b', 1)"]
)  # fmt: skip


def _expressions(leaf: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return expressions that hold `leaf` once, below up to four layers of syntax."""

    def around(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds("if({0} = {1}, 1, 2)".format, _HARMLESS, inner),
            st.builds("arrayMap(x -> {0}, [1, 2])".format, inner),
            st.builds("tuple({0}, {1})".format, inner, _HARMLESS),
            st.builds("CASE WHEN isNull({0}) THEN 1 ELSE 2 END".format, inner),
            st.builds("(SELECT any({0}) FROM flightwatch.device_samples)".format, inner),
            st.builds("count({0}) OVER (PARTITION BY {1})".format, inner, _HARMLESS),
            st.builds("concat(' -- ', toString({0}), ' /* ')".format, inner),
        )

    return st.recursive(leaf, around, max_leaves=4)


def _queries(expression: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    source = "FROM flightwatch.device_samples"
    return st.one_of(
        st.builds("SELECT {0} {1}".format, expression, st.just(source)),
        st.builds("SELECT node {1} WHERE isNotNull({0})".format, expression, st.just(source)),
        st.builds("SELECT node {1} ORDER BY {0} LIMIT 3".format, expression, st.just(source)),
        st.builds("WITH {0} AS z SELECT z {1}".format, expression, st.just(source)),
        st.builds("WITH q AS (SELECT {0} AS v {1}) SELECT * FROM q".format, expression, st.just(source)),
        st.builds("SELECT 1 UNION ALL SELECT isNull({0}) {1}".format, expression, st.just(source)),
        st.builds("SELECT * {1} AS a JOIN (SELECT {0} AS v, node {1}) AS b ON a.node = b.node".format, expression,
                  st.just(source)),
    )  # fmt: skip


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(_queries(_expressions(_HARMLESS)))
def test_fuzz_harmless_expressions_pass(store: Store, query: str) -> None:
    assert check(store, query)


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(_queries(_expressions(_HARMFUL)))
def test_fuzz_harmful_expressions_are_refused_wherever_they_hide(store: Store, query: str) -> None:
    with pytest.raises(Refused):
        check(store, query)


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(max_size=60).map(lambda text: f"select 1 {text}"))
def test_fuzz_any_text_is_answered_or_refused(store: Store, query: str) -> None:
    try:
        People(store, LIMITS).run(query, "json")
    except Refused:
        pass


def test_json_is_exact(store: Store) -> None:
    answer = run_people_sql(
        store,
        "select toUInt64(18446744073709551615) as u, toDateTime64('2026-11-29 19:10:13', 3, 'UTC') as ts, null as n,"
        " nan as x, true as b, map('a', 1.5) as m union all select 1, now64(3), null, 0.1, false, map('a', 2.5)",
    )
    first, second = (json.loads(line) for line in answer.decode().splitlines())
    both = sorted((first, second), key=lambda row: -int(row["u"]))
    assert both[0] == {
        "u": 18446744073709551615,
        "ts": "2026-11-29T19:10:13.000Z",
        "n": None,
        "x": "nan",
        "b": True,
        "m": {"a": 1.5},
    }
    assert both[1]["x"] == 0.1


def test_csv_shows_null_as_empty_and_defuses_formulas(store: Store) -> None:
    answer = run_people_sql(store, "select null as n, '=1+1' as f, -5 as v, 'a\"b' as q, 'x,\"=y' as z", "csv")
    assert answer.decode() == '"n","f","v","q","z"\n,"\'=1+1",-5,"a""b","x,""=y"\n'


def test_table_aligns_and_escapes(store: Store) -> None:
    answer = run_people_sql(store, "select 'a\\x1b[31m' as text, 7 as number, null as nothing, '中' as wide", "table")
    assert answer.decode().splitlines() == [
        "text       number  nothing  wide",
        "---------  ------  -------  ----",
        "a\\x1b[31m       7  NULL     中",
        "(1 row)",
    ]


def test_parquet_and_arrow_keep_types(store: Store) -> None:
    query = "select now64(3) as ts, toUInt64(18446744073709551615) as u, 'x' as s"
    parquet = pa.parquet.read_table(io.BytesIO(run_people_sql(store, query, "parquet")))
    arrow = pa.ipc.open_file(io.BytesIO(run_people_sql(store, query, "arrow"))).read_all()
    for table in (parquet, arrow):
        assert table.schema.field("ts").type == pa.timestamp("ms", tz="UTC")
        assert table.column("u").to_pylist() == [18446744073709551615]
        assert table.schema.field("s").type == pa.string()


def test_an_unknown_format_is_a_usage_error(store: Store) -> None:
    with pytest.raises(ConfigError, match="xml"):
        run_people_sql(store, "select 1", "xml")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select sum(cityHash64(number)) from numbers(1000000000000)", "longer than 1 s"),
        ("select groupArray(number) from numbers(1000000000)", "memory"),
        ("select number from numbers(100000)", "more than 1,000 rows"),
        ("select toInt8('a')", "failed"),
        ("select * from nothing", "failed"),
    ],
)
def test_limits_and_failures_are_one_sentence(store: Store, query: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        run_people_sql(store, query, "json", LIMITS)


def test_reading_too_much_is_refused(store: Store) -> None:
    limits = Limits(seconds=5, memory_bytes=10**8, rows=10, result_bytes=1_000, read_rows=1_000, threads=1)
    with pytest.raises(Refused, match="read more than 1,000 rows"):
        run_people_sql(store, "select count() from numbers(100000) where number % 7 = 1", "json", limits)


def test_the_handle_cannot_write_even_without_the_guard(store: Store) -> None:
    people = People(store)
    with people._handle("direct") as (client, _):
        for statement in ("set max_execution_time = 0", "insert into flightwatch.events (node) values ('a')"):
            with pytest.raises(Exception, match="readonly mode"):
                client.command(statement)


def test_a_running_query_can_be_cancelled(store: Store) -> None:
    limits = Limits(seconds=60, memory_bytes=10**8, rows=10, result_bytes=1_000, read_rows=10**15, threads=1)
    people, outcome = People(store, limits), []

    def ask() -> None:
        try:
            people.run("select sum(cityHash64(number)) from numbers(1000000000000)", query_id="q-1")
        except Refused as error:
            outcome.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
        people.cancel("q-1")
        thread.join(0.05)
    assert outcome == ["the query was cancelled"]


def test_only_so_many_queries_at_once(store: Store) -> None:
    busy = Store(store._connect, embedded=True, settings=StoreSettings(people_concurrency=1))
    people = People(busy)
    with people._slots.place("somebody"), pytest.raises(Refused, match="too many"):
        people.run("select 1")
    assert people.run("select 1 as x") == b'{"x":1}\n'
    busy.close()

"""Which functions a person's SQL may call: a reviewed list of names with reasons, nothing else.

The list is the file `functions.tsv` (name, allow or refuse, reason). It is written from the engine's own
`system.functions` by the rules below: `python -m flightwatch.pipeline.store.functions > functions.tsv`.
At run time only the file counts, so a function that a new engine brings is refused until somebody runs
the rules again and reads the difference; a test compares the file with the engine.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import resources

#: Categories of `system.functions` whose functions compute from their arguments alone.
PURE = {
    "Aggregate Functions": "aggregates the rows it is given",
    "Arithmetic": "computes from its arguments",
    "Arrays": "computes from its arguments",
    "Bit": "computes from its arguments",
    "Bitmap": "computes from its arguments",
    "Comparison": "computes from its arguments (tables after IN are checked by name)",
    "Conditional": "computes from its arguments",
    "Dates and Times": "computes from its arguments and the clock",
    "Distance": "computes from its arguments",
    "Encoding": "computes from its arguments",
    "Hash": "computes from its arguments",
    "IP Address": "computes from its arguments",
    "JSON": "parses the text it is given",
    "Logical": "computes from its arguments",
    "Map": "computes from its arguments",
    "Mathematical": "computes from its arguments",
    "Null": "computes from its arguments",
    "Random Number": "draws random numbers",
    "Rounding": "computes from its arguments",
    "String": "computes from its arguments",
    "String Replacement": "computes from its arguments",
    "String Search": "computes from its arguments",
    "String Splitting": "computes from its arguments",
    "Time Window": "computes from its arguments",
    "Tuple": "computes from its arguments",
    "Type Conversion": "converts its argument",
    "URL": "parses the text it is given; fetches nothing",
    "UUID": "computes from its arguments or draws random bits",
}
#: Functions of other categories that were looked at one by one.
SINGLE = {
    "bar": "draws text",
    "byteSize": "size of its arguments",
    "countDigits": "computes from its arguments",
    "digits": "computes from its arguments",
    "finalizeAggregation": "value of an aggregate state (states come only from tables and aggregates)",
    "formatReadableDecimalSize": "formats a number",
    "formatReadableQuantity": "formats a number",
    "formatReadableSize": "formats a number",
    "formatReadableTimeDelta": "formats a number",
    "exists": "syntax of EXISTS (SELECT ...); tables inside are checked by name",
    "identity": "returns its argument",
    "ignore": "returns 0",
    "materialize": "returns its argument",
    "parseReadableSize": "parses the text it is given",
    "parseReadableSizeOrNull": "parses the text it is given",
    "parseReadableSizeOrZero": "parses the text it is given",
    "parseTimeDelta": "parses the text it is given",
    "rowNumberInAllBlocks": "numbers rows",
    "rowNumberInBlock": "numbers rows",
    "runningDifference": "computes from its arguments",
    "seriesDecomposeSTL": "computes from its arguments",
    "seriesOutliersDetectTukey": "computes from its arguments",
    "toTypeName": "name of a type",
    "transform": "computes from its arguments",
    "caseWithExpression": "CASE, computes from its arguments",
    "lambda": "syntax of an anonymous function",
}
#: Names the parser makes up for syntax; `system.functions` does not know them.
SYNTAX = ("exists", "lambda")
#: Functions of the pure categories that are refused all the same.
EXCEPT = {
    "aggThrow": "exists to make queries fail",
    "chdb": "describes this process",
    "convertCharset": "loads conversion tables by name",
    "displayName": "describes this process",
    "estimateCompressionRatio": "runs codecs chosen by the caller",
    "flameGraph": "resolves addresses of this process",
    "formatRow": "runs an output format, some of which read schema files",
    "formatRowNoNewline": "runs an output format, some of which read schema files",
    "generateSnowflakeID": "carries state and the machine's id",
    "groupFormat": "runs an output format, some of which read schema files",
    "naiveBayesNgrams": "belongs to models read from files",
    "serverTimezone": "describes this process",
    "timezone": "describes this process",
    "kqlParameterCast": "part of another query language",
}
_REFUSED = {
    "AI": "calls services on the network",
    "Dictionary": "reads dictionaries, whose sources can be anything",
    "Embedded Dictionary": "reads files of the engine",
    "Encryption": "not needed to look at telemetry",
    "Financial": "not needed to look at telemetry",
    "Geo": "not needed to look at telemetry",
    "Geo Polygon": "not needed to look at telemetry",
    "Internal": "internal to the engine",
    "Introspection": "reveals addresses, or writes to the log",
    "Machine Learning": "reads models from files",
    "NumericIndexedVector": "not needed to look at telemetry",
    "QBit": "not needed to look at telemetry",
    "Time Series": "keeps state in the session",
}
#: Suffixes that change an aggregate function; what is left must be an allowed aggregate.
COMBINATORS = (
    "SimpleState", "MergeState", "OrDefault", "Distinct", "Resample", "ForEach", "OrNull", "ArgMin", "ArgMax",
    "Array", "Merge", "State", "Map", "Null", "If",
)  # fmt: skip


def verdict(name: str, category: str) -> tuple[bool, str]:
    """Say whether a function may be called and why, from its name and its category in `system.functions`."""
    if name in EXCEPT:
        return False, EXCEPT[name]
    if name.startswith("timeSeries"):
        return False, _REFUSED["Time Series"]
    if name in SINGLE:
        return True, SINGLE[name]
    if category in PURE:
        return True, PURE[category]
    return False, _REFUSED.get(category, "reveals or changes the engine, or was not looked at")


@cache
def _reviewed() -> tuple[tuple[str, bool, str, bool], ...]:
    """Return the lines of functions.tsv: name, allowed, reason, whether it is an aggregate."""
    text = resources.files("flightwatch.pipeline.store").joinpath("functions.tsv").read_text(encoding="utf-8")
    lines = (line.split("\t") for line in text.splitlines() if line and not line.startswith("#"))
    return tuple((name, word == "allow", reason, kind == "aggregate") for name, word, reason, kind in lines)


def verdicts() -> dict[str, tuple[bool, str]]:
    """Return the reviewed list: name to (allowed, reason)."""
    return {name: (allowed, reason) for name, allowed, reason, _ in _reviewed()}


@cache
def _allowed() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of allowed scalar and aggregate functions in lower case."""
    names = [(name.lower(), aggregate) for name, allowed, _, aggregate in _reviewed() if allowed]
    return (
        frozenset(name for name, aggregate in names if not aggregate),
        frozenset(name for name, aggregate in names if aggregate),
    )


def is_allowed(name: str) -> bool:
    """Say whether a query may call `name`, aggregate combinators included. Case is ignored."""
    scalars, aggregates = _allowed()
    word = name.lower()
    if word in scalars or word in aggregates:
        return True
    for suffix in COMBINATORS:
        if word.endswith(suffix.lower()) and len(word) > len(suffix) and _is_aggregate(word[: -len(suffix)]):
            return True
    return False


def _is_aggregate(word: str) -> bool:
    _, aggregates = _allowed()
    if word in aggregates:
        return True
    return any(
        word.endswith(suffix.lower()) and len(word) > len(suffix) and _is_aggregate(word[: -len(suffix)])
        for suffix in COMBINATORS
    )


def engine_functions(rows: list[dict[str, object]]) -> dict[str, tuple[str, bool]]:
    """Return name to (category, is aggregate) from rows of `system.functions`; an alias has its original's."""
    known = {str(row["name"]): (str(row["categories"]).strip(), bool(row["is_aggregate"])) for row in rows}
    for row in rows:
        original = known.get(str(row["alias_to"]))
        if original:
            known[str(row["name"])] = original
    return known


def _main() -> None:
    import json

    import chdb

    session = chdb.connect(":memory:")

    answer = session.query("SELECT name, categories, is_aggregate, alias_to FROM system.functions", "JSONEachRow")
    rows = [json.loads(line) for line in answer.bytes().decode().splitlines()]
    aliases = {row["name"]: row["alias_to"] for row in rows if row["alias_to"]}
    known = engine_functions(rows) | dict.fromkeys(SYNTAX, ("", False))
    sys.stdout.write("# name, verdict, reason, kind; written by flightwatch.pipeline.store.functions\n")
    for name, (category, aggregate) in sorted(known.items()):
        allowed, reason = verdict(aliases.get(name, name), category)
        if name in EXCEPT:
            allowed, reason = verdict(name, category)
        kind = "aggregate" if aggregate else "scalar"
        sys.stdout.write(f"{name}\t{'allow' if allowed else 'refuse'}\t{reason}\t{kind}\n")


if __name__ == "__main__":
    _main()

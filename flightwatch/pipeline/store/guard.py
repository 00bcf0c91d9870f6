"""The one gate through which a person's SQL reaches the store.

The engine's own parser decides, never a reading of the text:

1. `formatQuerySingleLine` on a bound parameter refuses several statements, drops comments, normalises.
2. `EXPLAIN AST SELECT * FROM (<normalised>)` accepts nothing but one plain SELECT. Every node of the tree
   must be of a kind in `_NODES`; tables, table functions and functions are checked by name against
   allow-lists. Node kinds, names and functions that are not known here are refused.
3. The query then runs on a handle whose limits were set before `readonly` and whose current database is
   empty, so that an unqualified name finds nothing (`store.people`).

What it does not do: it does not estimate cost (limits of the handle stop an expensive query) and does not
filter rows by tenant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import ConfigError, Refused, TransientError
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.functions import is_allowed
from flightwatch.pipeline.store.layout import LATEST

#: Longest query text, characters.
MAXIMUM_LENGTH = 50_000
#: Tables that only an administrator reads.
PRIVATE_TABLES = frozenset({"audit_log", "dead_letters", "alert_deliveries", "schema_versions"})
VIEWS = frozenset(
    {"v_device_rates", "v_port_rates", "v_step_times", "v_incidents", "v_open_incidents", "v_lost_gpu_hours",
     "v_node_history", "v_placements", "v_coverage", "v_goodput"}
)  # fmt: skip
ROLLUPS = frozenset({"device_1m", "node_1m", "port_1m", "op_1m"})
ADMIN_TABLES = frozenset(TABLES) | VIEWS | ROLLUPS | frozenset(LATEST) | frozenset(f"v_{name}" for name in LATEST)
VIEWER_TABLES = ADMIN_TABLES - PRIVATE_TABLES
#: Table functions that make rows out of their arguments.
TABLE_FUNCTIONS = frozenset(
    {"numbers", "zeros", "generateseries", "generate_series", "values", "sqlstandardvalues", "null"}
)

#: Kinds of syntax tree nodes a query may have. `Set` (SETTINGS) and `ColumnsApplyTransformer` (calls a function
#: whose name the tree does not show) are missing on purpose.
_NODES = frozenset(
    {
        "SelectWithUnionQuery", "SelectIntersectExceptQuery", "SelectQuery", "ExpressionList", "Subquery",
        "TablesInSelectQuery", "TablesInSelectQueryElement", "TableExpression", "TableIdentifier", "TableJoin",
        "ArrayJoin", "SampleRatio", "WithElement", "Identifier", "Literal", "Function", "Asterisk",
        "QualifiedAsterisk", "ColumnsRegexpMatcher", "ColumnsListMatcher", "QualifiedColumnsRegexpMatcher",
        "QualifiedColumnsListMatcher", "ColumnsTransformerList", "ColumnsExceptTransformer",
        "ColumnsReplaceTransformer", "ColumnsReplaceTransformer::Replacement", "OrderByElement",
        "InterpolateElement", "WindowDefinition", "WindowListElement", "StorageOrderByElement",
    }
)  # fmt: skip
_LINE = re.compile(r"( *)([A-Za-z:]+)(?: (.*))?")
_TAIL = re.compile(r"(?: \(alias [^()]*\))?(?: \(children \d+\))?$")
_TABLE = re.compile(r"(?:([A-Za-z_]\w*)\.)?([A-Za-z_]\w*)")
#: Quoted pieces of normalised text: strings, then identifiers (the only two that can hold odd characters).
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|`((?:[^`\\]|\\.|``)*)`|\"((?:[^\"\\]|\\.|\"\")*)\"", re.DOTALL)
_PLAIN_IDENTIFIER = re.compile(r"[^\x00-\x1f\x7f\\()]*")
_IN = re.compile(r"(?:global)?(?:not)?(?:null)?in(?:ignoreset)?", re.IGNORECASE)
#: Functions whose argument names a type; it must be a constant, so that it can be looked at.
_TYPED = re.compile(r"_?cast|accuratecast\w*|reinterpret|jsonextract\w*|defaultvalueoftypename", re.IGNORECASE)


@dataclass(slots=True)
class _Node:
    kind: str
    text: str
    parent: _Node | None
    children: list[_Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Text without alias and number of children."""
        return _TAIL.sub("", self.text)


def check(store: Store, text: str, tables: frozenset[str] = VIEWER_TABLES) -> str:
    """Return the normalised form of one harmless SELECT.

    Parameters
    ----------
    text: what a person typed.
    tables: tables and views of the database `flightwatch` it may read.

    Raises
    ------
    Refused: anything else; the text says what was refused in one sentence.
    TransientError: the store is away.
    """
    if len(text) > MAXIMUM_LENGTH:
        raise Refused(f"the query is longer than {MAXIMUM_LENGTH:,} characters")
    if not text.isascii() and text != text.encode("utf-8", "ignore").decode():
        raise Refused("the query is not valid UTF-8")
    if "\x00" in text:
        raise Refused("the query contains a NUL character")
    normal = _normalised(store, text)
    root = _tree(store, normal)
    for node in _walk(root):
        _check_node(node, tables)
    return normal


def _normalised(store: Store, text: str) -> str:
    try:
        rows = store.rows("SELECT formatQuerySingleLine({query:String}) AS query", {"query": text})
    except (TransientError, ConfigError):
        raise
    except Refused as error:
        raise Refused(f"not one valid SELECT: {_syntax(error)}") from error
    normal = str(rows[0]["query"]).strip()
    if not re.match(r"\(*\s*(SELECT|WITH)\b", normal):
        raise Refused("only SELECT is allowed here")
    for match in _QUOTED.finditer(normal):
        identifier = match[1] if match[1] is not None else match[2]
        if identifier is not None and not _PLAIN_IDENTIFIER.fullmatch(identifier):
            raise Refused("names with control characters, backslashes or parentheses are not allowed")
    return normal


def _tree(store: Store, normal: str) -> _Node:
    try:
        lines = store.rows(f"EXPLAIN AST SELECT * FROM ({normal})")
    except (Refused, ConfigError) as error:
        raise Refused("only a plain SELECT is allowed: no FORMAT, INTO OUTFILE or query parameters") from error
    root = _Node("", "", None)
    path = [root]
    for line in lines:
        match = _LINE.fullmatch(str(line["explain"]))
        if match is None:
            if str(line["explain"]).strip():
                raise Refused("the query cannot be checked")
            continue
        depth = len(match[1]) + 1
        if depth > len(path):
            raise Refused("the query cannot be checked")
        del path[depth:]
        node = _Node(match[2], match[3] or "", path[-1])
        path[-1].children.append(node)
        path.append(node)
    return root


def _walk(node: _Node) -> Iterator[_Node]:
    pending = list(node.children)
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children)


def _check_node(node: _Node, tables: frozenset[str]) -> None:
    if node.kind == "Set":
        raise Refused("SETTINGS are not allowed")
    if node.kind not in _NODES:
        raise Refused(f"this syntax is not allowed ({node.kind})")
    if node.kind == "TableIdentifier":
        _check_table(node.name, tables)
    elif node.kind == "Function":
        _check_function(node, tables)
    elif node.kind == "Literal":
        if node.parent is not None and node.parent.kind == "TableExpression":
            raise Refused("a quoted text is not a table")
        if "aggregatefunction" in node.text.lower():
            raise Refused("values cannot be turned into aggregate states")


def _check_table(name: str, tables: frozenset[str]) -> None:
    match = _TABLE.fullmatch(name)
    if match is None:
        raise Refused(f"there is no table {name[:80]!r}")
    database, table = match[1], match[2]
    # Without a database it can only be a WITH name: the handle's current database is empty.
    if database is not None and (database != DATABASE or table not in tables):
        raise Refused(f"the table {name[:80]} is not open to you")


def _check_function(node: _Node, tables: frozenset[str]) -> None:
    name = node.name
    if node.parent is not None and node.parent.kind == "TableExpression":
        if name.lower() not in TABLE_FUNCTIONS:
            raise Refused(f"the table function {name[:80]} is not allowed")
        return
    if not is_allowed(name):
        raise Refused(f"the function {name[:80]} is not allowed")
    arguments = node.children[0].children if node.children else []
    if _IN.fullmatch(name) and arguments and arguments[-1].kind in ("Identifier", "TableIdentifier"):
        _check_table(arguments[-1].name, tables)
    if _TYPED.fullmatch(name) and len(arguments) > 1:
        position = -1 if name.lower().startswith("jsonextract") else 1
        if arguments[position].kind != "Literal":
            raise Refused(f"the type of {name} must be written out")


def _syntax(error: Exception) -> str:
    """Return the engine's complaint about syntax without the statement it was wrapped in."""
    text = str(error).removeprefix("the store refused: ").split(": In scope ", 1)[0]
    return text if len(text) <= 200 else text[:197] + "..."

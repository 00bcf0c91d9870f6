"""Run a person's SELECT inside limits and render its result."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from flightwatch.core.errors import ConfigError, FlightwatchError, Refused
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.errors import CLIENT_ERRORS, engine_code, one_line, translate
from flightwatch.pipeline.store.guard import VIEWER_TABLES, check
from flightwatch.pipeline.store.people_slots import Slots
from flightwatch.pipeline.store.people_stream import RowCounter, pieces
from flightwatch.pipeline.store.people_table import drawn
from flightwatch.pipeline.store.row_scope import TENANT_TABLES, RowScope
from flightwatch.pipeline.store.settings import StoreSettings

#: Output formats and what the engine calls them; "table" is drawn here.
FORMATS = {
    "table": "JSONCompactEachRowWithNamesAndTypes",
    "csv": "CSVWithNames",
    "json": "JSONEachRow",
    "parquet": "Parquet",
    "arrow": "Arrow",
}
#: Results in Parquet and Arrow up to this size have their rows counted for the audit log.
_COUNTED_BYTES = 20_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query of a person may use.

    Attributes
    ----------
    seconds: longest run. memory_bytes: memory of the engine. rows, result_bytes: size of the result.
    read_rows: rows read from tables. threads: threads of the engine.
    """

    seconds: int
    memory_bytes: int
    rows: int
    result_bytes: int
    read_rows: int
    threads: int

    @classmethod
    def of(cls, settings: StoreSettings) -> Limits:
        """Return the limits an operator configured."""
        return cls(
            settings.people_timeout_seconds,
            settings.people_memory_bytes,
            settings.people_rows,
            settings.people_result_bytes,
            settings.people_read_rows,
            settings.people_threads,
        )

    def engine_settings(self) -> dict[str, Any]:
        """Return the settings of the handle, `readonly` last: after it nothing can be changed."""
        return {
            "max_execution_time": self.seconds,
            "timeout_before_checking_execution_speed": 0,
            "timeout_overflow_mode": "throw",
            "max_memory_usage": self.memory_bytes,
            "max_result_rows": self.rows,
            "max_result_bytes": self.result_bytes,
            "result_overflow_mode": "throw",
            "max_rows_to_read": self.read_rows,
            "read_overflow_mode": "throw",
            "max_threads": self.threads,
            "max_subquery_depth": 20,
            "max_ast_elements": 20_000,
            "max_expanded_ast_elements": 100_000,
            "max_columns_to_read": 1_000,
            "max_temporary_data_on_disk_size_for_query": 1,
            "allow_ddl": 0,
            "allow_introspection_functions": 0,
            "date_time_output_format": "iso",
            "output_format_json_validate_utf8": 1,
            # "nan" and "inf" as texts: as null they would look unknown.
            "output_format_json_quote_denormals": 1,
            "format_csv_null_representation": "",
            "readonly": 1,
        }


@dataclass(frozen=True, slots=True)
class Ran:
    """One query of a person that ended, for the audit log.

    Attributes
    ----------
    who: the person, "" where nobody said. text: as typed. ok: it ended well; else reason says why not.
    rows: None where the format does not tell. size_bytes: of the result as sent.
    """

    who: str
    text: str
    ok: bool
    reason: str
    rows: int | None
    size_bytes: int
    elapsed_ms: float


class Result:
    """The result of one query as an iterable of pieces. Close it, or read it to its end, to free its place.

    The engine's complaint can come between two pieces: `Refused` is then raised from the iteration, and what was
    sent is not the whole result.
    """

    def __init__(self, pieces: Iterator[bytes], done: Callable[[str, int | None, int], None], form: str) -> None:
        self._pieces, self._done, self._form = pieces, done, form
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces; raises as `People.run`."""
        counter, size, kept = RowCounter(self._form), 0, []
        whole_wanted = self._form in ("parquet", "arrow", "table")
        try:
            for piece in self._pieces:
                counter.add(piece)
                size += len(piece)
                if whole_wanted and size <= _COUNTED_BYTES:
                    kept.append(piece)
                yield piece
            whole = b"".join(kept) if whole_wanted and size <= _COUNTED_BYTES else None
            self._end("", counter.rows(whole), size)
        except FlightwatchError as error:
            self._end(str(error), None, size)
            raise
        finally:
            self._end("the reader went away", None, size)

    def close(self) -> None:
        """Give the place back without reading on."""
        self._end("the reader went away", None, 0)

    def _end(self, reason: str, rows: int | None, size: int) -> None:
        if not self._ended:
            self._ended = True
            self._done(reason, rows, size)


class People:
    """Runs people's queries: at most `people_concurrency` at once and `people_concurrency_each` of one person.

    Thread-safe. A handle is made for a query and closed after it, so nothing of one query reaches the next.

    Parameters
    ----------
    store: an open store.
    limits: None: as configured.
    note: told of every query that ended, refused ones too.
    """

    def __init__(self, store: Store, limits: Limits | None = None, note: Callable[[Ran], None] | None = None) -> None:
        self._store = store
        self._limits = limits or Limits.of(store.settings)
        self._slots = Slots(store.settings.people_concurrency, store.settings.people_concurrency_each)
        self._note = note

    def run(
        self,
        text: str,
        form: str = "json",
        tables: frozenset[str] = VIEWER_TABLES,
        query_id: str | None = None,
        *,
        who: str = "",
        scope: RowScope | None = None,
    ) -> bytes:
        """Check and run one SELECT.

        Parameters
        ----------
        text: what the person typed.
        form: table, csv, json (one object a line), parquet or arrow (IPC file).
        tables: tables the person may read (see `guard.check`).
        query_id: name under which `cancel` finds the query while it runs.
        who: the person, for limits and the audit log; "" when there is only one.
        scope: tenants whose rows the person sees; None: all.

        Returns
        -------
        The result in the format asked for, UTF-8 where it is text.

        Raises
        ------
        Refused: the guard or the engine refuses it, a limit was reached, or too many queries run.
        ConfigError: unknown format. TransientError: the store is away.
        """
        answer = b"".join(self.open(text, form, tables, query_id, who=who, scope=scope))
        return drawn(answer) if form == "table" else answer

    def open(
        self,
        text: str,
        form: str = "json",
        tables: frozenset[str] = VIEWER_TABLES,
        query_id: str | None = None,
        *,
        who: str = "",
        scope: RowScope | None = None,
    ) -> Result:
        """Start one SELECT; its result comes in pieces. Parameters and errors as `run`; "table" comes undrawn.

        What goes wrong before the first piece is raised here, so that a server can still answer with an error.
        """
        if form not in FORMATS:
            raise ConfigError(f"format {form!r} is not one of {', '.join(FORMATS)}")
        begin = time.monotonic()
        stack = ExitStack()

        def done(reason: str, rows: int | None, size: int) -> None:
            stack.close()
            if self._note is not None:
                self._note(Ran(who, text, not reason, reason, rows, size, (time.monotonic() - begin) * 1000))

        try:
            stack.enter_context(self._slots.place(who))
            normal = check(self._store, text, tables if scope is None else tables & TENANT_TABLES)
            client, settings = stack.enter_context(self._handle(query_id or str(uuid.uuid4()), scope))
            return Result(self._begun(stack, client, normal, form, settings), done, form)
        except FlightwatchError as error:
            done(str(error), None, 0)
            raise

    def _begun(
        self, stack: ExitStack, client: Any, normal: str, form: str, settings: dict[str, Any]
    ) -> Iterator[bytes]:
        """Start the query and read its first piece; return all pieces."""

        def rest(first: bytes | None, later: Iterator[bytes]) -> Iterator[bytes]:
            try:
                if first is not None:
                    yield first
                yield from later
            except CLIENT_ERRORS as error:
                raise self._explained(error) from error

        try:
            stream = client.raw_stream(normal, fmt=FORMATS[form], settings=settings)
            stack.callback(stream.close)
            later = pieces(stream, form)
            return rest(next(later, None), later)
        except CLIENT_ERRORS as error:
            raise self._explained(error) from error

    def cancel(self, query_id: str) -> None:
        """Stop the query that runs under `query_id`; does nothing when there is none."""
        self._store.command(
            "KILL QUERY WHERE query_id IN"
            " (SELECT query_id FROM system.processes WHERE Settings['log_comment'] = {name:String}) ASYNC",
            {"name": _comment(query_id)},
        )

    @contextmanager
    def _handle(self, query_id: str, scope: RowScope | None = None) -> Iterator[tuple[Any, dict[str, Any]]]:
        settings = {"log_comment": _comment(query_id)} | self._limits.engine_settings()
        filters = "" if scope is None else scope.setting(cluster=bool(self._store.cluster))
        client = self._store.people_client()
        try:
            if self._store.embedded:
                # The embedded handle keeps its settings: set once, then closed for good by readonly.
                client.command(f"USE {DATABASE}_people")
                if filters:
                    client.command(f"SET additional_table_filters = {filters}")
                for name, value in settings.items():
                    client.command(f"SET {name} = '{value}'")
                yield client, {}
            else:
                client.database = f"{DATABASE}_people"
                yield client, settings | ({"additional_table_filters": filters} if filters else {})
        except CLIENT_ERRORS as error:
            raise translate(error, inserting=False) from error
        finally:
            client.close()

    def _explained(self, error: Exception) -> FlightwatchError:
        limits = self._limits
        reasons = {
            159: f"the query ran longer than {limits.seconds} s",
            160: f"the query would run longer than {limits.seconds} s",
            241: f"the query needs more than {limits.memory_bytes // 1_000_000:,} MB of memory",
            158: f"the query would read more than {limits.read_rows:,} rows",
            396: f"the result has more than {limits.rows:,} rows or {limits.result_bytes:,} bytes: add a LIMIT",
            394: "the query was cancelled",
        }
        code = engine_code(error)
        if code in reasons:
            return Refused(reasons[code])
        if code is not None:
            return Refused(f"the query failed: {one_line(error).split(' Maybe you meant', 1)[0]}")
        return translate(error, inserting=False)


#: Content types of the answers.
CONTENT_TYPES = {
    "table": "text/plain; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "json": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.file",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answers to `POST /sql`: status, content type and body."""

    status: int
    content_type: str
    body: bytes


def answer_request(
    people: People, body: bytes, tables: frozenset[str] = VIEWER_TABLES, query_id: str | None = None
) -> Answer:
    """Answer the body of a `POST /sql` request; `query_id` names it for `People.cancel`.

    The request is `{"query": "SELECT ...", "format": "json"}` (format: a key of FORMATS, json when absent).
    200 carries the result; 400 (malformed request), 422 (refused) and 503 (store away) carry
    `{"error": {"code": ..., "message": one sentence}}`.
    """
    try:
        request = json.loads(body)
        text, form = request["query"], request.get("format", "json")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _error(400, "malformed", 'send {"query": "SELECT ...", "format": "json"}')
    if not isinstance(text, str) or not isinstance(form, str):
        return _error(400, "malformed", "query and format must be texts")
    try:
        return Answer(200, CONTENT_TYPES.get(form, ""), people.run(text, form, tables, query_id))
    except Refused as error:
        return _error(422, "refused", str(error))
    except ConfigError as error:
        return _error(400, "malformed", str(error))
    except FlightwatchError as error:
        return _error(503, "unavailable", str(error))


def _error(status: int, code: str, message: str) -> Answer:
    body = json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False).encode()
    return Answer(status, "application/json", body)


def run_people_sql(
    store: Store,
    text: str,
    form: str = "json",
    limits: Limits | None = None,
    tables: frozenset[str] = VIEWER_TABLES,
) -> bytes:
    """Check and run one SELECT of a person once; see `People.run`. A server keeps one `People` instead."""
    return People(store, limits).run(text, form, tables)


def _comment(query_id: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", query_id):
        raise ConfigError("a query id has up to 64 letters, digits and dashes")
    return f"flightwatch-people-{query_id}"

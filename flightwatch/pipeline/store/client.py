"""One client for both stores: ClickHouse embedded in this process, or ClickHouse servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.errors import CLIENT_ERRORS, translate
from flightwatch.pipeline.store.insert import insert_block
from flightwatch.pipeline.store.lock import StoreLock
from flightwatch.pipeline.store.settings import StoreSettings

T = TypeVar("T")

#: Behaviour that must not differ between engine versions, servers and profiles.
PINNED: dict[str, Any] = {
    "session_timezone": "UTC",
    "enable_analyzer": 1,
    "join_use_nulls": 0,
    "union_default_mode": "",
    "prefer_column_name_to_alias": 0,
    "transform_null_in": 0,
    "aggregate_functions_null_for_empty": 0,
    "date_time_input_format": "best_effort",
    "date_time_output_format": "simple",
    "output_format_json_quote_64bit_integers": 0,
    "output_format_json_quote_denormals": 0,
    "output_format_arrow_string_as_string": 1,
    "output_format_arrow_low_cardinality_as_dictionary": 0,
    "output_format_arrow_compression_method": "none",
    "output_format_parquet_string_as_string": 1,
}


class Store:
    """A connection to the store. Thread-safe: a call borrows a client that no other call uses meanwhile.

    Build it with `open_store`. Times come back as int milliseconds since the epoch (UTC) from `rows`,
    as `timestamp[ms, UTC]` from `arrow`. NULL comes back as None.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        embedded: bool,
        settings: StoreSettings,
        lock: StoreLock | None = None,
        connect_people: Callable[[], Any] | None = None,
    ) -> None:
        self.embedded = embedded
        self.cluster = settings.cluster
        self.settings = settings
        self._connect = connect
        self._connect_people = connect_people or connect
        self._lock = lock
        self._idle: list[Any] = []
        self._guard = threading.Lock()
        self._closed = False
        try:
            self._call(lambda client: None)
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> Path | None:
        """Folder of an embedded store, None for servers."""
        return self._lock.folder if self._lock else None

    def rows(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Run a query and return its rows as dictionaries.

        Parameters
        ----------
        sql: one SELECT with `{name:Type}` placeholders.
        parameters: values of the placeholders; a datetime is bound as UTC.

        Raises
        ------
        TransientError: the store is away or overloaded. ConfigError: no such table, user or grant.
        Refused: the query itself is refused.
        """

        def read(client: Any) -> list[dict[str, Any]]:
            result = client.query(sql, parameters=_bound(parameters), settings=dict(settings or {}), tz_mode="aware")
            timed = [i for i, kind in enumerate(result.column_types) if "DateTime" in kind.name]
            cells: Sequence[Sequence[Any]] = result.result_rows
            if timed:
                cells = [[_plain_time(v) if i in timed else v for i, v in enumerate(row)] for row in cells]
            return [dict(zip(result.column_names, row, strict=True)) for row in cells]

        return self._call(read)

    def arrow(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> pa.Table:
        """Run a query and return an Arrow table; raises as `rows`."""
        return self._call(
            lambda client: client.query_arrow(
                sql, parameters=_bound(parameters), settings=dict(settings or {}), use_strings=True
            )
        )

    def raw(self, sql: str, form: str, parameters: Mapping[str, Any] | None = None) -> bytes:
        """Run a query and return its result in a ClickHouse output format; raises as `rows`."""
        return bytes(self._call(lambda client: client.raw_query(sql, parameters=_bound(parameters), fmt=form)))

    def command(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one statement that is not a SELECT; return its short answer. Raises as `rows`."""
        return self._call(
            lambda client: client.command(sql, parameters=_bound(parameters), settings=dict(settings or {}))
        )

    def insert_block(self, table: str, block: pa.Table, token: str) -> None:
        """Insert one block under a deduplication token; when it returns, the rows are on disk.

        Parameters
        ----------
        table: a table of the catalogue.
        block: columns with the types of `schema.arrow_schema(table)`; absent columns become NULL or the default.
        token: names exactly this block; the same token again changes nothing.

        Raises
        ------
        BadRecord: the data is refused for good. TransientError: outcome unknown, repeat the identical block.
        ConfigError: no such table, user or grant.
        """
        target = f"{table}_local" if self.cluster else table
        self._call(lambda client: insert_block(client, target, block, token), inserting=True)

    def people_client(self) -> Any:
        """Return a new client for one query of a person; the caller closes it. Raises as `rows`."""
        try:
            return self._connect_people()
        except CLIENT_ERRORS as error:
            raise translate(error, inserting=False) from error

    def close(self) -> None:
        """Close all clients and release the folder; later calls raise ConfigError."""
        with self._guard:
            idle, self._idle, self._closed = self._idle, [], True
        for client in idle:
            client.close()
        if self._lock:
            self._lock.release()

    def _call(self, use: Callable[[Any], T], *, inserting: bool = False) -> T:
        try:
            with self._client() as client:
                return use(client)
        except CLIENT_ERRORS as error:
            raise translate(error, inserting=inserting) from error

    @contextmanager
    def _client(self) -> Iterator[Any]:
        with self._guard:
            if self._closed:
                raise ConfigError("the store is closed")
            client = self._idle.pop() if self._idle else None
        if client is None:
            client = self._connect()
        try:
            yield client
        finally:
            with self._guard:
                keep = not self._closed
                if keep:
                    self._idle.append(client)
            if not keep:
                client.close()


def open_store(url: str, settings: StoreSettings) -> Store:
    """Open the store at `url`: `chdb:///FOLDER` or `clickhouse://USER@HOST:PORT/flightwatch`.

    Costs about 0.7 s and 250 MB for an embedded store. The schema is not touched: see `migrate`.

    Raises
    ------
    ConfigError: the URL is malformed. Refused: the folder is open in another process (its pid is named).
    TransientError: the server is away.
    """
    parts = urlsplit(url)
    if parts.scheme == "chdb" and parts.path not in ("", "/") and not parts.netloc:
        return _open_embedded(Path("/" + unquote(parts.path).lstrip("/")), settings)
    if parts.scheme == "clickhouse" and parts.hostname:
        return _open_server(url, settings)
    raise ConfigError(f"store = {url!r} must be chdb:///FOLDER or clickhouse://USER@HOST:PORT/{DATABASE}")


def _open_embedded(folder: Path, settings: StoreSettings) -> Store:
    lock = StoreLock(folder)
    lock.acquire()

    def connect() -> Any:
        import clickhouse_connect

        return clickhouse_connect.get_client(
            interface="chdb",
            path=str(lock.folder),
            settings=_session(settings),
            tz_source="server",
            chdb_options={"backups.allowed_path": str(lock.backup_folder)},
        )

    try:
        return Store(connect, embedded=True, settings=replace(settings, cluster=""), lock=lock)
    except BaseException:
        lock.release()
        raise


def _open_server(url: str, settings: StoreSettings) -> Store:
    parts = urlsplit(url)
    if parts.password:
        raise ConfigError("store: the password belongs into FLIGHTWATCH_STORE_PASSWORD, not into the URL")
    if parts.path.strip("/") not in ("", DATABASE):
        raise ConfigError(f"store = {url!r}: the database is always {DATABASE}")

    def connect(user: str = unquote(parts.username or "default"), password: str = settings.password) -> Any:
        import clickhouse_connect

        return clickhouse_connect.get_client(
            host=parts.hostname,
            port=parts.port or (8443 if settings.secure else 8123),
            username=user,
            password=password,
            secure=settings.secure,
            ca_cert=settings.ca_file or None,
            connect_timeout=settings.connect_timeout_seconds,
            send_receive_timeout=settings.query_timeout_seconds + 10,
            settings=_session(settings),
            autogenerate_session_id=False,
        )

    def connect_people() -> Any:
        return connect(settings.people_user, settings.people_password) if settings.people_user else connect()

    return Store(connect, embedded=False, settings=settings, connect_people=connect_people)


def _session(settings: StoreSettings) -> dict[str, Any]:
    return PINNED | {
        "max_threads": settings.threads,
        "max_memory_usage": settings.query_memory_bytes,
        "max_execution_time": settings.query_timeout_seconds,
    }


def _bound(parameters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return dict(parameters) if parameters else None


def _plain_time(value: Any) -> Any:
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, (list, tuple)):
        return [_plain_time(item) for item in value]
    return value

"""Opening the control database, its transactions and its parts."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.errors import ConfigError, TransientError
from flightwatch.pipeline.control.agents import AgentKeys
from flightwatch.pipeline.control.leases import Leases
from flightwatch.pipeline.control.outbox import Outbox
from flightwatch.pipeline.control.settings import ControlSettings

_MIGRATIONS = Path(__file__).parent / "migrations"
#: Key of PostgreSQL's advisory lock under which one process migrates while others wait ("fwct").
_MIGRATION_LOCK = 0x66776374


class Turn:
    """Lets the threads of one process write to an SQLite file one after the other.

    SQLite's own wait for another writer sleeps up to 0.1 s at a time and looks again: of several busy threads some
    would wait long although the file is free in between. A thread that waits here goes on when the other one is done.
    """

    def __init__(self, longest_seconds: float) -> None:
        self._lock = threading.Lock()
        self._longest_seconds = longest_seconds

    def __enter__(self) -> None:
        """Wait for this thread's turn. Raises TransientError when it takes too long."""
        if not self._lock.acquire(timeout=self._longest_seconds):
            raise TransientError("the control database did not answer: another thread of this process writes too long")

    def __exit__(self, *_: object) -> None:
        """Let the next one write."""
        self._lock.release()


class Control:
    """A connection to the control database. Thread-safe. Build it with `open_control`.

    Attributes
    ----------
    leases: who may act in a role.
    outbox: rows on their way to the bus.
    agent_keys: public keys of agents.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None, turn: Turn | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self._turn: AbstractContextManager[None] = turn or nullcontext()
        self.leases = Leases(self)
        self.outbox = Outbox(self)
        self.agent_keys = AgentKeys(self)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Open a transaction that may write; commits at the end of the block, rolls back on an exception.

        On SQLite it is the only writer from its start, on PostgreSQL rows are locked as they are read
        `with_for_update`.

        Raises
        ------
        TransientError: the database is away or busy; nothing was changed, unless the connection broke during
            the commit itself.
        """
        try:
            with self._turn, self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise self._trouble(error) from error

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a transaction that only reads; never waits for writers. Raises as `transaction`."""
        try:
            with self._engine.connect().execution_options(flightwatch_reading=True) as connection:
                yield connection
        except DBAPIError as error:
            raise self._trouble(error) from error

    def _trouble(self, error: DBAPIError) -> TransientError:
        name = str(getattr(error.orig, "sqlite_errorname", ""))
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            where = self._engine.url.database
            return TransientError(
                f"the control database {where} is damaged ({_reason(error)}): put the copy from a backup in its place"
            )
        return TransientError(f"the control database did not answer: {_reason(error)}")

    def now_ms(self, connection: sa.Connection) -> int:
        """Return the time that all processes agree on: PostgreSQL's clock, or this machine's for SQLite."""
        if self._clock is not None:
            return self._clock.now_ms()
        if self._engine.dialect.name == "postgresql":
            seconds = connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()
            return int(seconds * 1000)
        return SystemClock().now_ms()

    def backup(self, target: Path) -> None:
        """Copy an SQLite database to a new file while it is in use.

        Raises
        ------
        ConfigError: the database is PostgreSQL (its own tools back it up), or the target exists.
        """
        if self._engine.dialect.name != "sqlite":
            raise ConfigError("a control database on PostgreSQL is backed up with pg_dump")
        if target.exists():
            raise ConfigError(f"{target} exists already")
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(target)) as copy, closing(sqlite3.connect(str(self._engine.url.database))) as own:
            own.backup(copy)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def open_control(url: str, settings: ControlSettings, clock: Clock | None = None) -> Control:
    """Open the control database at `url` and migrate it; processes that open it together wait for one.

    Parameters
    ----------
    url: `sqlite:///ABSOLUTE/FILE` (made, 0600, when absent) or `postgresql://USER@HOST[:PORT]/DB`.
    settings: password, timeouts.
    clock: time of leases in tests and simulations; None: see `Control.now_ms`.

    Raises
    ------
    ConfigError: the URL is malformed, the file cannot be used, or a newer program migrated the database.
    TransientError: the server is away.
    """
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        engine = _sqlite(url, settings)
    elif scheme == "postgresql":
        engine = _postgresql(url, settings)
    else:
        raise ConfigError(
            f"flightwatch.control = {_hidden(url)!r}: known are sqlite:///FILE and postgresql://USER@HOST/DB"
        )
    control = Control(engine, clock, Turn(settings.busy_timeout_seconds) if scheme == "sqlite" else None)
    try:
        _migrate(control)
    except BaseException:
        control.close()
        raise
    return control


def _sqlite(url: str, settings: ControlSettings) -> sa.Engine:
    path = Path("/" + unquote(urlsplit(url).path).lstrip("/"))
    if path == Path("/"):
        raise ConfigError(f"flightwatch.control = {url!r}: write sqlite:///ABSOLUTE/FILE")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        # It holds sessions, tokens and keys: an old or foreign file may be too open.
        path.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"control database {path}: {error.strerror}") from error
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        connect_args={"timeout": settings.busy_timeout_seconds, "check_same_thread": False},
    )

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: Any) -> None:
        # The driver's own idea of transactions starts them too late: BEGIN is sent below.
        connection.isolation_level = None
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A writer takes the lock at once: upgrading a read transaction fails when somebody wrote meanwhile.
        reading = connection.get_execution_options().get("flightwatch_reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _postgresql(url: str, settings: ControlSettings) -> sa.Engine:
    parts = urlsplit(url)
    if parts.password:
        raise ConfigError(
            "flightwatch.control: the password belongs into FLIGHTWATCH_CONTROL_PASSWORD, not into the URL"
        )
    if not parts.hostname or not parts.path.strip("/"):
        raise ConfigError(f"flightwatch.control = {url!r}: write postgresql://USER@HOST/DB")
    return sa.create_engine(
        sa.URL.create(
            "postgresql+psycopg",
            username=unquote(parts.username) if parts.username else None,
            password=settings.password or None,
            host=parts.hostname,
            port=parts.port,
            database=unquote(parts.path.strip("/")),
        ),
        pool_size=settings.connections,
        pool_pre_ping=True,
        pool_timeout=settings.busy_timeout_seconds,
        isolation_level="READ COMMITTED",
        connect_args={
            "connect_timeout": settings.busy_timeout_seconds,
            # A process that was stopped inside a transaction must not keep its locks from those who take over.
            "options": f"-c lock_timeout={settings.busy_timeout_seconds}s -c timezone=UTC"
            " -c idle_in_transaction_session_timeout=30s",
        },
    )


def _migrate(control: Control) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    try:
        with control.transaction() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        raise ConfigError(f"the control database was migrated by a newer Flightwatch: {error}") from error
    except SQLAlchemyError as error:
        raise ConfigError(f"the control database cannot be migrated: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())[:300]


def _hidden(url: str) -> str:
    parts = urlsplit(url)
    return url.replace(parts.password, "***") if parts.password else url

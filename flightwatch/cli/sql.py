"""`flightwatch sql`: one guarded SELECT against the running instance, a closed store or servers."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from pathlib import Path

from flightwatch.cli.common_settings import CommonSettings, local_path, local_url
from flightwatch.cli.local_client import LocalClient, error_text, not_answering
from flightwatch.cli.sections import load_settings
from flightwatch.core.errors import ConfigError, FlightwatchError, Refused
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode

HELP = "Run one SELECT over the tables of Flightwatch. It can read, never write; see docs/sql.md."
EPILOG = (
    "example:\n"
    '  flightwatch sql "SELECT node, max(temp_c) FROM flightwatch.v_device_latest GROUP BY node"\n'
    '  flightwatch sql --format csv "SELECT * FROM flightwatch.v_open_incidents" > open.csv\n'
    "  flightwatch sql - < question.sql"
)
FORMATS = ("table", "csv", "json", "parquet", "arrow")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("query", help='one SELECT; "-" reads it from standard input')
    parser.add_argument("--format", choices=FORMATS, default="table", help="json: one object a line (default: table)")
    parser.add_argument("--data-dir", help="data folder of the instance (default: flightwatch.data_dir)")
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Run the query and write the result to standard output."""
    text = sys.stdin.read() if arguments.query == "-" else arguments.query
    if arguments.format in ("parquet", "arrow") and sys.stdout.isatty():
        raise ConfigError(f"--format {arguments.format} is binary: send it to a file with > FILE")
    sys.stdout.buffer.write(ask(text, arguments.format, load_settings(arguments.config), arguments.data_dir))
    sys.stdout.buffer.flush()
    return ExitCode.DONE


def ask(text: str, form: str, settings: Loaded, data_dir: str | None = None) -> bytes:
    """Return the answer of the running instance, of a closed store, or of servers.

    Parameters
    ----------
    text: one SELECT.
    form: one of FORMATS.
    data_dir: folder of the instance; None: the configured one.

    Raises
    ------
    Refused: the query is refused, or nothing answers. ConfigError: malformed. FlightwatchError: the store is away.
    """
    common = settings.section(CommonSettings)
    folder = data_dir or common.data_dir
    store_url = local_url("chdb", folder, "store") if data_dir else common.store_url
    answer = _ask_instance(folder, text, form) if store_url.startswith("chdb:") else None
    return _ask_store(store_url, settings, text, form) if answer is None else answer


def _ask_instance(folder: str, text: str, form: str) -> bytes | None:
    """Return the running instance's answer, None when nothing runs on the folder.

    Raises
    ------
    Refused: the query is refused. ConfigError: the request is malformed. FlightwatchError: the store is away.
    """
    client = LocalClient(folder)
    if not _listens(client.path):
        # Opening the store of an instance that starts would make its start fail.
        if starting := not_answering(client.path.parent):
            raise Refused(starting)
        return None
    with client.request("POST", "/sql", json.dumps({"query": text, "format": form}).encode()) as response:
        body, status = response.read(), response.status
    if status == 200:
        return body
    reason = error_text(body, status)
    raise {400: ConfigError, 422: Refused}.get(status, FlightwatchError)(reason)


def _listens(path: Path) -> bool:
    """Say whether a process listens on a unix socket; a file left over by a killed one does not count."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            # Somebody else's, or busy: the request itself says so.
            return True
    return True


def _ask_store(url: str, settings: Loaded, text: str, form: str) -> bytes:
    from flightwatch.pipeline.store.client import open_store
    from flightwatch.pipeline.store.guard import ADMIN_TABLES
    from flightwatch.pipeline.store.migrate import check
    from flightwatch.pipeline.store.people import run_people_sql
    from flightwatch.pipeline.store.settings import StoreSettings

    if url.startswith("chdb:") and not local_path(url).is_dir():
        raise Refused(f"there is no store at {local_path(url)} and nothing runs there; `flightwatch up` starts it")
    store = open_store(url, settings.section(StoreSettings))
    try:
        if check(store):
            raise Refused("the store is older than this program: `flightwatch store migrate` brings it up to date")
        # Who may open the store's files or knows its password owns all of it.
        return run_people_sql(store, text, form, tables=ADMIN_TABLES)
    finally:
        store.close()

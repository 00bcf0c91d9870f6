"""`flightwatch store migrate|backup|restore|check|size|rebuild-rollups`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from urllib.parse import urlsplit

from flightwatch.cli.common_settings import CommonSettings, local_path, local_url
from flightwatch.cli.sections import load_settings
from flightwatch.core.clock import SystemClock, iso_utc
from flightwatch.core.errors import ConfigError, Refused
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.store import maintenance
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings

HELP = "Migrate, back up, restore, check and measure the store. An embedded store must not be open elsewhere."
EPILOG = (
    "example:\n"
    "  flightwatch store migrate\n"
    "  flightwatch store backup --name before-upgrade\n"
    "  flightwatch store restore --name before-upgrade --data-dir ./new-folder\n"
    "  flightwatch store size --format json"
)
VERBS = ("migrate", "backup", "restore", "check", "size", "rebuild-rollups")
_CONTROL_FILE = "control.db"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("verb", choices=VERBS, help="what to do")
    parser.add_argument("--name", help="backup, restore: name of the backup (backup's default: the time)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="size: default text")
    parser.add_argument("--data-dir", help="data folder of a single-machine installation")
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Open the store and do it."""
    settings = load_settings(arguments.config)
    common = settings.section(CommonSettings)
    url, control_url = common.store_url, common.control_url
    if arguments.data_dir:
        url = local_url("chdb", arguments.data_dir, "store")
        control_url = local_url("sqlite", arguments.data_dir, _CONTROL_FILE)
    if arguments.verb not in ("migrate", "restore") and url.startswith("chdb:") and not local_path(url).is_dir():
        raise Refused(f"there is no store at {local_path(url)}")
    store = open_store(url, settings.section(StoreSettings))
    try:
        return _do(arguments, store, control_url, settings)
    finally:
        store.close()


def _do(arguments: argparse.Namespace, store: Store, control_url: str, settings: Loaded) -> int:
    if arguments.verb == "migrate":
        done = migrate(store)
        print("\n".join(done) if done else "the store is up to date")
    elif arguments.verb == "backup":
        _backup(store, arguments.name, control_url, settings)
    elif arguments.verb == "restore":
        _restore(store, arguments.name, control_url)
    elif arguments.verb == "check":
        found = maintenance.problems(store)
        print("\n".join(found) if found else "every part is readable and every rollup agrees with its rows")
        return ExitCode.FAILED if found else ExitCode.DONE
    elif arguments.verb == "size":
        _print_sizes(store, arguments.format)
    else:
        done = maintenance.rebuild_rollups(store)
        print(f"rebuilt {len(done)} rollups and tables of newest rows")
    return ExitCode.DONE


def _backup(store: Store, name: str | None, control_url: str, settings: Loaded) -> None:
    chosen = name or str(iso_utc(SystemClock().now_ms())).replace(":", "").replace(".000Z", "Z")
    folder = maintenance.backup(store, chosen)
    if urlsplit(control_url).scheme != "sqlite":
        print(f"backed up the store to {folder}; the control database is on PostgreSQL: back it up with pg_dump")
        return
    control = open_control(control_url, settings.section(ControlSettings))
    try:
        control.backup(folder / _CONTROL_FILE)
    finally:
        control.close()
    print(f"backed up the store and the control database to {folder}")


def _restore(store: Store, name: str | None, control_url: str) -> None:
    if not name:
        raise ConfigError("restore needs --name NAME")
    control_file = local_path(control_url)
    restores_control = urlsplit(control_url).scheme == "sqlite"
    if restores_control and control_file.exists():
        raise Refused(f"{control_file} exists: restore into an empty data folder")
    maintenance.restore(store, name)
    migrate(store)
    copy = maintenance.backup_folder(store, name) / _CONTROL_FILE
    if restores_control and copy.exists():
        control_file.touch(mode=0o600)
        control_file.write_bytes(copy.read_bytes())
        print(f"restored the store and the control database from {copy.parent}")
    else:
        print(f"restored the store from {copy.parent}; the control database was not in the backup")


def _print_sizes(store: Store, form: str) -> None:
    sizes = maintenance.sizes(store)
    if form == "json":
        for size in sizes:
            print(json.dumps(asdict(size)))
        return
    print(f"{'table':20} {'rows':>14} {'on disk':>12} {'bytes/row':>10} {'ratio':>6} {'parts':>6}")
    for size in sizes:
        per_row = f"{size.bytes_on_disk / size.rows:10.1f}" if size.rows else f"{'-':>10}"
        ratio = f"{size.bytes_raw / size.bytes_on_disk:6.1f}" if size.bytes_on_disk else f"{'-':>6}"
        print(f"{size.table:20} {size.rows:14,} {size.bytes_on_disk / 1e6:9.1f} MB {per_row} {ratio} {size.parts:6}")

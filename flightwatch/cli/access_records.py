"""People, tokens and the audit log in the control database that a configuration names.

Who can open that database owns it, so these commands ask for no token; they work before anything runs, which is how
the first token comes to be.
"""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flightwatch.cli.common_settings import CommonSettings, local_path
from flightwatch.cli.sections import load_settings
from flightwatch.core.errors import ConfigError

if TYPE_CHECKING:
    from flightwatch.pipeline.control.audit import AuditLog
    from flightwatch.pipeline.control.people import PeopleRecords
    from flightwatch.pipeline.control.sessions import Sessions
    from flightwatch.pipeline.control.tokens import Tokens


@dataclass(frozen=True)
class AccessRecords:
    """The records, and who uses them."""

    people: PeopleRecords
    tokens: Tokens
    sessions: Sessions
    audit: AuditLog
    actor: str

    def done(self, action: str, target: str, detail: str = "") -> None:
        """Write a change to the audit log."""
        self.audit.record(None, self.actor, action, target, True, detail)


def add_where(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say which control database is meant."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="folder of the instance (default: flightwatch.data_dir)")


@contextmanager
def open_records(arguments: argparse.Namespace) -> Iterator[AccessRecords]:
    """Open the records.

    Raises
    ------
    ConfigError: the database cannot be opened, or no installation is named and the default folder is not there.
    TransientError: its server is away.
    """
    from flightwatch.pipeline.control.audit import AuditLog
    from flightwatch.pipeline.control.database import open_control
    from flightwatch.pipeline.control.people import PeopleRecords
    from flightwatch.pipeline.control.sessions import Sessions
    from flightwatch.pipeline.control.settings import ControlSettings
    from flightwatch.pipeline.control.tokens import Tokens

    if arguments.data_dir:
        os.environ["FLIGHTWATCH_FLIGHTWATCH_DATA_DIR"] = str(Path(arguments.data_dir).absolute())
    settings = load_settings(arguments.config)
    url = settings.section(CommonSettings).control_url
    if url.startswith("sqlite:") and not arguments.data_dir and not local_path(url).parent.exists():
        raise ConfigError(f"there is no {local_path(url).parent}: name the installation with --data-dir or --config")
    control = open_control(url, settings.section(ControlSettings))
    try:
        yield AccessRecords(
            PeopleRecords(control), Tokens(control), Sessions(control), AuditLog(control), f"socket:{getpass.getuser()}"
        )
    finally:
        control.close()

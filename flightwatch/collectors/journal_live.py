"""New entries of systemd's journal as `events`: named services, and the kernel where /dev/kmsg is not readable.

The journal is asked with `journalctl` at the interval of commands; after a restart of the agent reading goes on
at the stored cursor. What an entry means is decided by the parser of recorded journal exports.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator

from flightwatch.collectors.environment import Environment
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import CaptureContext, Row

#: Entries read in one call; of more the newest are read, and an event says so.
MOST_ENTRIES = 5000
_FIELDS = "MESSAGE,_HOSTNAME,PRIORITY,_TRANSPORT,_SYSTEMD_UNIT,_SOURCE_REALTIME_TIMESTAMP,__REALTIME_TIMESTAMP"
_COMMAND = ("journalctl", "--quiet", "--no-pager", "--output=json", "--show-cursor")
_CURSOR = re.compile(rb"^-- cursor: ([\x21-\x7e]{1,1000})$", re.MULTILINE)
_FOLDERS = ("run/log/journal", "var/log/journal")


class JournalCollector:
    """Runs `journalctl --after-cursor` and keeps what the settings name."""

    name = "journal"
    own_thread = True

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.command_interval_seconds
        self._environment = environment
        self._units = frozenset(environment.settings.journal_units)
        self._cursor = ""

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read what is new. At the first call nothing is: the entries so far are old news.

        Raises
        ------
        NoData: no journal or no journalctl here, a recorded tree, or nothing is to be read from the journal.
        TransientError: journalctl failed; after a failure reading begins again at the end.
        """
        environment = self._environment
        if not environment.live or not any(environment.tree.listdir(folder) for folder in _FOLDERS):
            raise NoData("no systemd journal here")
        if environment.kernel_log_answers and not self._units:
            raise NoData("the kernel's log is read directly and no unit is named in journal_units")
        cursor = self._cursor or self._stored()
        words: tuple[str, ...] = (*_COMMAND, "--lines=0")
        if cursor:
            words = (*_COMMAND, f"--output-fields={_FIELDS}", f"--lines={MOST_ENTRIES}", f"--after-cursor={cursor}")
        try:
            output = environment.run_command(words, environment.settings.command_timeout_seconds)
        except TransientError:
            # A cursor of a journal that was deleted is refused for good.
            self._keep("")
            raise
        found = _CURSOR.search(output)
        if found is not None:
            self._keep(found[1].decode("ascii"))
        rows = list(self._rows(output, now_ms)) if cursor else []
        environment.devices.fill(rows)
        return rows

    def _rows(self, output: bytes, now_ms: int) -> Iterator[Row]:
        from flightwatch.collectors.captures.journal_export import JournalExport

        lines = [line for line in output.split(b"\n") if line.startswith(b"{")]
        if len(lines) >= MOST_ENTRIES:
            yield _overrun(now_ms)
        wanted = b"\n".join(line for line in lines if self._is_wanted(line))
        if not wanted:
            return
        for item in JournalExport().parse(io.BytesIO(wanted), CaptureContext("journal", now_ms)):
            if isinstance(item, Row) and item.table == "events":
                # The journal is this node's, whatever the host was called then.
                item.values.pop("node", None)
                yield item

    def _is_wanted(self, line: bytes) -> bool:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(entry, dict):
            return False
        if entry.get("_TRANSPORT") == "kernel":
            return not self._environment.kernel_log_answers
        return entry.get("_SYSTEMD_UNIT") in self._units

    def _path(self) -> str:
        return os.path.join(self._environment.state_dir, "journal_cursor")

    def _stored(self) -> str:
        if not self._environment.state_dir:
            return ""
        try:
            with open(self._path(), encoding="ascii") as file:
                return file.read(1001).strip()
        except (OSError, ValueError):
            return ""

    def _keep(self, cursor: str) -> None:
        if cursor == self._cursor and cursor:
            return
        self._cursor = cursor
        if not self._environment.state_dir:
            return
        with open(self._path() + ".new", "w", encoding="ascii") as file:
            file.write(cursor + "\n")
        os.replace(self._path() + ".new", self._path())


def _overrun(now_ms: int) -> Row:
    return Row(
        "events",
        {
            "ts": now_ms,
            "source": "agent",
            "code": "journal:overrun",
            "severity": "warning",
            "message": f"the journal grew by over {MOST_ENTRIES} entries between two readings; the oldest are lost",
        },
    )

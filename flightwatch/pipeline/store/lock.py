"""One process per embedded store: a lock file beside the folder that names its owner."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from flightwatch.core.errors import ConfigError, Refused

_OPEN_HERE: dict[Path, int] = {}
_GUARD = threading.Lock()


class StoreLock:
    """Exclusive ownership of an embedded store's folder by this process.

    The engine refuses a second process too, but prints why only to stderr and raises an empty message,
    and a second path in one process fails just as obscurely; both get a sentence here.

    Parameters
    ----------
    folder: the store's folder; made, 0700, when it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._descriptor: int | None = None

    @property
    def backup_folder(self) -> Path:
        """The one folder that the engine may write backups to and read them from."""
        return self.folder.with_name(self.folder.name + ".backups")

    def acquire(self) -> None:
        """Take the folder.

        Raises
        ------
        Refused: another process has it (its pid is named).
        ConfigError: this process has another store open, or the folder cannot be made.
        """
        with _GUARD:
            other = next(iter(_OPEN_HERE), None)
            if other is not None:
                raise ConfigError(f"this process has the store {other} open; one process opens one embedded store once")
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._descriptor = os.open(f"{self.folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ConfigError(f"store {self.folder}: {error.strerror}") from error
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                owner = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(self._descriptor)
                self._descriptor = None
                raise Refused(
                    f"store {self.folder} is in use by process {owner}; only one process can open an embedded store"
                ) from error
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
            _OPEN_HERE[self.folder] = os.getpid()

    def release(self) -> None:
        """Give the folder back; does nothing when it is not held."""
        with _GUARD:
            if self._descriptor is None:
                return
            os.close(self._descriptor)
            self._descriptor = None
            _OPEN_HERE.pop(self.folder, None)

"""The control server's key: signs commands; agents hold the public half in `agent.control_keys`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from flightwatch.core.ed25519 import SEED_BYTES, SigningKey, signing_key
from flightwatch.core.errors import ConfigError

KEY_FILE = "control.key"


def server_key(data_dir: Path) -> SigningKey:
    """Return the key in `<data_dir>/control.key`; it is made (0600) on first use.

    Raises
    ------
    ConfigError: the file is damaged, or others than its owner can read it.
    """
    path = data_dir / KEY_FILE
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot store the control server's key: {error.strerror}") from error
    with open(handle, "w", encoding="ascii") as file:
        seed = os.urandom(SEED_BYTES)
        file.write(seed.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return signing_key(seed)


def _read(path: Path) -> SigningKey:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the control server's key: {error.strerror}") from error
    with open(handle, encoding="ascii", errors="replace") as file:
        mode, text = os.fstat(file.fileno()).st_mode, file.read(200).strip()
    if not stat.S_ISREG(mode) or mode & 0o077:
        raise ConfigError(f"{path}: the control server's key must be a file that only its owner can read (chmod 600)")
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b""
    if len(seed) != SEED_BYTES:
        raise ConfigError(f"{path}: not a key; remove it, and give agents the new public half")
    return signing_key(seed)

"""Who this agent is: the node's name, and the Ed25519 key with which it signs its batches."""

from __future__ import annotations

import os
import re
import stat

from flightwatch.core.ed25519 import SEED_BYTES, SigningKey, signing_key
from flightwatch.core.errors import ConfigError, Refused

KEY_FILE = "key"
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def checked_node_name(name: str, key: str = "flightwatch.node") -> str:
    """Return the name when it is one.

    Node names end up in commands of schedulers and in file names: letters, digits, dot, dash and
    underscore, the first a letter or digit, at most 253 characters.

    Raises
    ------
    ConfigError: it is not, naming the setting.
    """
    if _NODE_NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{key} = {name[:80]!r} is not a node name: up to 253 letters, digits, '.', '-' and '_', beginning with a"
            " letter or digit"
        )
    return name


def load_identity(state_dir: str) -> SigningKey | None:
    """Return the key made by `enroll`, None when the node has not been enrolled.

    Raises
    ------
    ConfigError: the key file is damaged, or others than its owner can read it.
    """
    path = os.path.join(state_dir, KEY_FILE)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the agent's key: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) or mode & 0o077:
            raise ConfigError(f"{path}: the agent's key must be a file that only its owner can read (chmod 600)")
        content = file.read(200).strip()
    try:
        seed = bytes.fromhex(content.decode("ascii"))
    except ValueError as error:
        raise ConfigError(f"{path}: not a key; remove it and run `flightwatch agent enroll`") from error
    if len(seed) != SEED_BYTES:
        raise ConfigError(f"{path}: not a key; remove it and run `flightwatch agent enroll`")
    return signing_key(seed)


def make_identity(state_dir: str) -> SigningKey:
    """Make a key and store its private half in `state_dir`, readable by the owner alone.

    Raises
    ------
    Refused: there is a key already.
    ConfigError: the folder cannot be written.
    """
    path = os.path.join(state_dir, KEY_FILE)
    seed = os.urandom(SEED_BYTES)
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise Refused(f"{path}: this node has a key already") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot store the agent's key: {error.strerror}") from error
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(seed.hex() + "\n")
        file.flush()
        os.fsync(descriptor)
    return signing_key(seed)

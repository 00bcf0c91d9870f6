"""Who this agent is: the node's name, and the Ed25519 key with which it signs its batches.

Signing uses the OpenSSL library that Python itself is linked to; only where that cannot be reached the
`cryptography` package, which costs an agent 6.5 MB. Both give the same bytes (Ed25519 is deterministic).
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass

from flightwatch.core.errors import ConfigError, Refused

KEY_FILE = "key"
SIGNATURE_BYTES = 64
_SEED_BYTES = 32
_ED25519 = 1087  # NID_ED25519 of OpenSSL
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
            f"{key} = {name!r} is not a node name: letters, digits, '.', '-' and '_', beginning with a letter or digit"
        )
    return name


@dataclass(frozen=True, slots=True)
class Identity:
    """The key of one agent.

    Attributes
    ----------
    public_key: 32 bytes, known to the control database.
    sign: returns the 64-byte signature of a message.
    """

    public_key: bytes
    sign: Callable[[bytes], bytes]


def load_identity(state_dir: str) -> Identity | None:
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
    if len(seed) != _SEED_BYTES:
        raise ConfigError(f"{path}: not a key; remove it and run `flightwatch agent enroll`")
    return identity_of(seed)


def make_identity(state_dir: str) -> Identity:
    """Make a key and store its private half in `state_dir`, readable by the owner alone.

    Raises
    ------
    Refused: there is a key already.
    ConfigError: the folder cannot be written.
    """
    path = os.path.join(state_dir, KEY_FILE)
    seed = os.urandom(_SEED_BYTES)
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
    return identity_of(seed)


def identity_of(seed: bytes) -> Identity:
    """Return public key and signing function of a 32-byte private seed."""
    library = _openssl()
    return _with_cryptography(seed) if library is None else _with_openssl(library, seed)


def _openssl() -> ctypes.CDLL | None:
    """Return OpenSSL's library when it is there and knows Ed25519 (1.1.1 and later)."""
    for name in ("libcrypto.so.3", "libcrypto.so.1.1"):
        try:
            library = ctypes.CDLL(name)
            library.EVP_PKEY_new_raw_private_key.restype = ctypes.c_void_p
            library.EVP_PKEY_new_raw_private_key.argtypes = [
                ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t,
            ]  # fmt: skip
            library.EVP_PKEY_get_raw_public_key.argtypes = [
                ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t),
            ]  # fmt: skip
            library.EVP_MD_CTX_new.restype = ctypes.c_void_p
            library.EVP_MD_CTX_free.argtypes = [ctypes.c_void_p]
            library.EVP_DigestSignInit.argtypes = [ctypes.c_void_p] * 5
            library.EVP_DigestSign.argtypes = [
                ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_char_p, ctypes.c_size_t,
            ]  # fmt: skip
        except (OSError, AttributeError):
            continue
        return library
    return None


def _with_openssl(library: ctypes.CDLL, seed: bytes) -> Identity:
    key = library.EVP_PKEY_new_raw_private_key(_ED25519, None, seed, len(seed))
    public = ctypes.create_string_buffer(32)
    size = ctypes.c_size_t(32)
    if not key or library.EVP_PKEY_get_raw_public_key(key, public, ctypes.byref(size)) != 1:
        return _with_cryptography(seed)

    def sign(message: bytes) -> bytes:
        context = library.EVP_MD_CTX_new()
        try:
            signature = ctypes.create_string_buffer(SIGNATURE_BYTES)
            length = ctypes.c_size_t(SIGNATURE_BYTES)
            if (
                not context
                or library.EVP_DigestSignInit(context, None, None, None, key) != 1
                or library.EVP_DigestSign(context, signature, ctypes.byref(length), message, len(message)) != 1
            ):
                raise Refused("OpenSSL did not sign the batch")
            return signature.raw
        finally:
            library.EVP_MD_CTX_free(context)

    return Identity(public.raw, sign)


def _with_cryptography(seed: bytes) -> Identity:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise ConfigError(
            "signing needs OpenSSL 1.1.1 or the Python package cryptography (pip install 'flightwatch[agent]')"
        ) from error
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return Identity(public, key.sign)

"""Ed25519 signatures with the OpenSSL library that Python itself is linked to.

The `cryptography` package costs an agent 6.5 MB of memory; it is used only where OpenSSL 1.1.1 or
later cannot be reached. Both give the same bytes: Ed25519 is deterministic (RFC 8032).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from flightwatch.core.errors import ConfigError, Refused

SEED_BYTES = 32
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
_NID_ED25519 = 1087


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key pair.

    Attributes
    ----------
    public_key: 32 bytes.
    sign: returns the 64-byte signature of a message; raises Refused when the library fails.
    """

    public_key: bytes
    sign: Callable[[bytes], bytes]


def signing_key(seed: bytes) -> SigningKey:
    """Return the key pair of a 32-byte private seed. Raises ConfigError when no library can sign."""
    library = _openssl()
    return _cryptography_key(seed) if library is None else _openssl_key(library, seed)


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Say whether `signature` is that of `message` under `public_key`. Raises ConfigError without a library."""
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    library = _openssl()
    if library is None:
        return _cryptography_verify(public_key, message, signature)
    key = library.EVP_PKEY_new_raw_public_key(_NID_ED25519, None, public_key, len(public_key))
    if not key:
        return False
    context = library.EVP_MD_CTX_new()
    try:
        return bool(
            context
            and library.EVP_DigestVerifyInit(context, None, None, None, key) == 1
            and library.EVP_DigestVerify(context, signature, len(signature), message, len(message)) == 1
        )
    finally:
        library.EVP_MD_CTX_free(context)
        library.EVP_PKEY_free(key)


def _openssl() -> ctypes.CDLL | None:
    """Return OpenSSL's library when it is there and knows Ed25519."""
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    for name in ("libcrypto.so.3", "libcrypto.so.1.1"):
        try:
            library = ctypes.CDLL(name)
            for make in (library.EVP_PKEY_new_raw_private_key, library.EVP_PKEY_new_raw_public_key):
                make.restype, make.argtypes = pointer, [ctypes.c_int, pointer, text, size]
            library.EVP_PKEY_get_raw_public_key.argtypes = [pointer, text, ctypes.POINTER(size)]
            library.EVP_PKEY_free.argtypes = [pointer]
            library.EVP_MD_CTX_new.restype = pointer
            library.EVP_MD_CTX_free.argtypes = [pointer]
            library.EVP_DigestSignInit.argtypes = [pointer] * 5
            library.EVP_DigestSign.argtypes = [pointer, text, ctypes.POINTER(size), text, size]
            library.EVP_DigestVerifyInit.argtypes = [pointer] * 5
            library.EVP_DigestVerify.argtypes = [pointer, text, size, text, size]
        except (OSError, AttributeError):
            continue
        return library
    return None


def _openssl_key(library: ctypes.CDLL, seed: bytes) -> SigningKey:
    key = library.EVP_PKEY_new_raw_private_key(_NID_ED25519, None, seed, len(seed))
    public = ctypes.create_string_buffer(PUBLIC_KEY_BYTES)
    public_size = ctypes.c_size_t(PUBLIC_KEY_BYTES)
    if not key or library.EVP_PKEY_get_raw_public_key(key, public, ctypes.byref(public_size)) != 1:
        return _cryptography_key(seed)

    def sign(message: bytes) -> bytes:
        context = library.EVP_MD_CTX_new()
        try:
            signature = ctypes.create_string_buffer(SIGNATURE_BYTES)
            size = ctypes.c_size_t(SIGNATURE_BYTES)
            if (
                not context
                or library.EVP_DigestSignInit(context, None, None, None, key) != 1
                or library.EVP_DigestSign(context, signature, ctypes.byref(size), message, len(message)) != 1
            ):
                raise Refused("OpenSSL did not sign")
            return signature.raw
        finally:
            library.EVP_MD_CTX_free(context)

    return SigningKey(public.raw, sign)


def _cryptography_key(seed: bytes) -> SigningKey:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise ConfigError(_NO_LIBRARY) from error
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return SigningKey(public, key.sign)


def _cryptography_verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise ConfigError(_NO_LIBRARY) from error
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


_NO_LIBRARY = "signatures need OpenSSL 1.1.1 or the Python package cryptography (pip install 'flightwatch[agent]')"

"""Traces in an S3-compatible object store (AWS S3, MinIO, Ceph, OSS, ...): put and get one file.

Requests are signed with AWS Signature Version 4; the body's SHA-256 is part of the signature, so the service itself
refuses what was damaged on its way. Files are streamed. Only addresses on the allow-list of the configuration are
used, redirects are never followed, and credentials come from the environment alone.

What it does not do: uploads in parts (a file may have 5 GB at most), virtual-host addresses, listing, deleting.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlsplit

from flightwatch.core.clock import Clock
from flightwatch.core.errors import BadRecord, ConfigError, Refused, TransientError

#: The largest object of one request.
MOST_BYTES = 5_000_000_000
_SECONDS = 120.0
_PIECE = 1 << 20
_PLACE = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9._=+@-]{1,200})*)/?")
KEY_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket and the beginning of its keys ("" or "a/b")."""

    bucket: str
    prefix: str

    def key(self, name: str) -> str:
        """Return the key of a file below the place."""
        return f"{self.prefix}/{name}" if self.prefix else name


def place_of(url: str) -> Place:
    """Return the bucket and prefix of s3://BUCKET/PREFIX. Raises ConfigError when it is not such an address."""
    match = _PLACE.fullmatch(url)
    if match is None or ".." in url or "/./" in url:
        raise ConfigError(f"{url!r} is not an address like s3://bucket/prefix")
    return Place(match[1], match[2].strip("/"))


def checked_place(url: str, allowed: Sequence[str]) -> str:
    """Return an address that lies at or below one of the allowed ones.

    Raises
    ------
    ConfigError: it does not, or is no address.
    """
    wanted = place_of(url)
    for entry in allowed:
        place = place_of(entry)
        inside = not place.prefix or wanted.prefix == place.prefix or wanted.prefix.startswith(f"{place.prefix}/")
        if wanted.bucket == place.bucket and inside:
            return url.rstrip("/")
    raise ConfigError(f"{url} is not below an address in profiles.object_stores")


class ObjectStore:
    """One service.

    Parameters
    ----------
    endpoint: http(s)://HOST[:PORT] of the service; buckets are the first part of the path.
    environment: holds AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and perhaps AWS_SESSION_TOKEN.

    Raises
    ------
    ConfigError: the endpoint is no such address.
    """

    def __init__(self, endpoint: str, region: str, environment: Mapping[str, str], clock: Clock) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.username:
            raise ConfigError(f"profiles.s3_endpoint {endpoint!r}: write http(s)://HOST or http(s)://HOST:PORT")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._netloc = parts.netloc
        self._region = region
        self._environment = environment
        self._clock = clock

    def put(self, url: str, path: Path, sha256: str) -> None:
        """Store a file under an address.

        Raises
        ------
        Refused: the service refuses it, there are no credentials, or the file is too large.
        TransientError: the service is away; try again.
        """
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise Refused(f"{url}: {size} bytes are more than the {MOST_BYTES} of one object")
        with path.open("rb") as body:
            status, answer = self._call("PUT", url, sha256, body, size)
        if status != 200:
            raise _explained(url, status, answer)

    def get(self, url: str, target: Path, sha256: str | None) -> None:
        """Fetch an address into a file.

        Raises
        ------
        Refused: there is no such object, or no right to it. TransientError: the service is away.
        BadRecord: the object is not the one that was stored.
        """
        empty = hashlib.sha256(b"").hexdigest()
        connection, response = self._request("GET", url, empty, None, 0)
        whole = hashlib.sha256()
        try:
            if response.status != 200:
                raise _explained(url, response.status, response.read(2000))
            with target.open("wb") as file:
                while piece := response.read(_PIECE):
                    whole.update(piece)
                    file.write(piece)
        except (http.client.HTTPException, OSError) as error:
            raise TransientError(f"{url}: the service broke off: {error}") from error
        finally:
            connection.close()
        if sha256 is not None and whole.hexdigest() != sha256:
            raise BadRecord(f"{url}: not the trace that was stored")

    def _call(self, method: str, url: str, sha256: str, body: BinaryIO | None, size: int) -> tuple[int, bytes]:
        connection, response = self._request(method, url, sha256, body, size)
        try:
            return response.status, response.read(2000)
        except (http.client.HTTPException, OSError) as error:
            raise TransientError(f"{url}: the service broke off: {error}") from error
        finally:
            connection.close()

    def _request(
        self, method: str, url: str, sha256: str, body: BinaryIO | None, size: int
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        place = place_of(url)
        path = quote(f"/{place.bucket}/{place.prefix}", safe="/~")
        headers = self._signed(method, path, sha256)
        if body is not None:
            headers["Content-Length"] = str(size)
        connection: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=_SECONDS, context=context)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)
        try:
            connection.request(method, path, body=body, headers=headers)
            return connection, connection.getresponse()
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            raise TransientError(f"the object store at {self._netloc} does not answer: {error}") from error

    def _signed(self, method: str, path: str, sha256: str) -> dict[str, str]:
        key, secret = (self._environment.get(name, "") for name in KEY_NAMES)
        if not key or not secret:
            raise Refused(f"the object store needs {' and '.join(KEY_NAMES)} in the environment of the control server")
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, tz=UTC)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        headers = {"host": self._netloc, "x-amz-content-sha256": sha256, "x-amz-date": stamp}
        token = self._environment.get("AWS_SESSION_TOKEN", "")
        if token:
            headers["x-amz-security-token"] = token
        names = ";".join(sorted(headers))
        canonical = "\n".join(
            (method, path, "", *(f"{name}:{headers[name]}" for name in sorted(headers)), "", names, sha256)
        )
        scope = f"{day}/{self._region}/s3/aws4_request"
        text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
        signing = f"AWS4{secret}".encode()
        for part in (day, self._region, "s3", "aws4_request"):
            signing = hmac.digest(signing, part.encode(), "sha256")
        signature = hmac.new(signing, text.encode(), "sha256").hexdigest()
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return headers


def store_of(endpoint: str, region: str, clock: Clock) -> ObjectStore:
    """Return the service of the configuration, with this process's credentials; "" is AWS itself."""
    return ObjectStore(endpoint or f"https://s3.{region}.amazonaws.com", region, os.environ, clock)


def _explained(url: str, status: int, answer: bytes) -> Refused | TransientError:
    found = re.search(rb"<Code>([A-Za-z]{1,60})</Code>", answer)
    reason = f"{url}: the object store answered {status}" + (f" ({found[1].decode()})" if found else "")
    return TransientError(reason) if status >= 500 or status == 429 else Refused(reason)

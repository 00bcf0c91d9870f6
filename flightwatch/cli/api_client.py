"""Asking a running instance through its API: over the unix socket of this machine, or a URL with a token."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.local_client import LocalClient, error_text
from flightwatch.cli.sections import load_settings
from flightwatch.core.errors import ConfigError, FlightwatchError, Refused

PREFIX = "/api/v1"
URL_VARIABLE, TOKEN_VARIABLE = "FLIGHTWATCH_URL", "FLIGHTWATCH_TOKEN"
TIMEOUT_SECONDS = 60.0


def add_where(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say which instance is asked."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="folder of an instance on this machine (default: flightwatch.data_dir)")
    parser.add_argument(
        "--url", help=f"address of a console elsewhere (default: {URL_VARIABLE}); its token is in {TOKEN_VARIABLE}"
    )


def client_of(arguments: argparse.Namespace) -> ApiClient:
    """Return a client for the instance that the arguments of `add_where` and the environment name.

    Raises
    ------
    ConfigError: the URL is none, or there is no token for it.
    """
    url = arguments.url or ("" if arguments.data_dir else os.environ.get(URL_VARIABLE, ""))
    if url:
        return ApiClient.remote(url, _token())
    folder = arguments.data_dir or load_settings(arguments.config).section(CommonSettings).data_dir
    return ApiClient.local(folder)


class ApiClient:
    """Requests to `/api/v1`. Build it with `local` or `remote`."""

    def __init__(self, local: LocalClient | None, url: str = "", token: str = "") -> None:
        self._local, self._url, self._token = local, url, token

    @classmethod
    def local(cls, data_dir: str) -> ApiClient:
        """Ask the instance of a data folder, as its owner."""
        return cls(LocalClient(data_dir, TIMEOUT_SECONDS))

    @classmethod
    def remote(cls, url: str, token: str) -> ApiClient:
        """Ask a console by its address; raises ConfigError when it is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url!r}: write https://NAME")
        return cls(None, url.rstrip("/"), token)

    def get(self, path: str, **query: Any) -> Any:
        """Return the document of a GET; a query value of None is left out, a list is repeated."""
        answer = self._ask("GET", path + _query(query), None)
        return json.loads(answer) if answer else None

    def get_text(self, path: str, **query: Any) -> str:
        """Return the text of a GET that answers with a document for people."""
        return self._ask("GET", path + _query(query), None).decode("utf-8")

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the document that answers a write, None when there is none.

        Raises
        ------
        Refused: not found, not allowed, or refused in the present state. ConfigError: an argument is wrong.
        FlightwatchError: the instance or its databases are away.
        """
        answer = self._ask(method, path, {} if body is None and method != "DELETE" else body)
        return json.loads(answer) if answer else None

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        content = None if body is None else json.dumps(body).encode()
        with self._response(method, PREFIX + path, content) as response:
            answer, status = response.read(), response.status
        if 200 <= status < 300:
            return answer
        kind = ConfigError if status in (400, 422) else Refused if status < 500 else FlightwatchError
        raise kind(error_text(answer, status))

    @contextmanager
    def _response(self, method: str, path: str, content: bytes | None) -> Iterator[http.client.HTTPResponse]:
        if self._local is not None:
            with self._local.request(method, path, content) as response:
                yield response
            return
        parts = urlsplit(self._url)
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        connection = _connection(parts.scheme, parts.hostname or "", parts.port)
        try:
            try:
                connection.request(method, parts.path + path, content, headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
                raise FlightwatchError(f"{where} does not answer: {error}") from error
            with response:
                yield response
        finally:
            connection.close()


def escaped(part: str) -> str:
    """Return one part of a path as it is written in a URL."""
    return quote(part, safe="")


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=ssl.create_default_context())


def _query(wanted: Mapping[str, Any]) -> str:
    pairs = [(key, item) for key, value in wanted.items() for item in _items(value)]
    return f"?{urlencode(pairs)}" if pairs else ""


def _items(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]


def _token() -> str:
    token = os.environ.get(TOKEN_VARIABLE, "")
    file = os.environ.get(f"{TOKEN_VARIABLE}_FILE", "")
    if not token and file:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{TOKEN_VARIABLE}_FILE: cannot read {file}: {error.strerror}") from error
    if not token:
        raise ConfigError(f"a console elsewhere needs a token: set {TOKEN_VARIABLE} or {TOKEN_VARIABLE}_FILE")
    return token

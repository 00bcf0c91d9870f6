"""Scrape OpenMetrics exporters of this node (dcgm-exporter, npu-exporter, any other) into rows."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.live_rows import LiveRows
from flightwatch.core.errors import ConfigError, NoData, TransientError
from flightwatch.core.protocols import CaptureContext, Row, Value

#: Largest answer read from one exporter, in bytes.
ANSWER_LIMIT = 16 << 20
_CHUNK = 1 << 16
_ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.9, text/plain;version=0.0.4;q=0.8, */*;q=0.1"


class ScrapeCollector:
    """Reads every URL of `agent.scrape_urls` once per interval.

    An exporter that fails leaves the others alone; only when all fail is the call a failure. Redirects are
    not followed, the answer is bounded, and connecting and reading together take at most the timeout.
    """

    name = "scrape"
    #: An exporter can take seconds to answer.
    own_thread = True

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.scrape_interval_seconds
        self._environment = environment
        self._timeout_s = environment.settings.scrape_timeout_seconds
        self._targets = [(url, LiveRows(environment, f"scrape {url}")) for url in environment.settings.scrape_urls]

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Scrape every exporter once.

        Raises
        ------
        NoData: no URL is configured, or the tree is a recorded one.
        TransientError: no exporter answered.
        """
        if not self._environment.live or not self._targets:
            raise NoData("agent.scrape_urls names no exporter")
        from flightwatch.collectors.captures.openmetrics import OpenMetrics

        rows: list[Row] = []
        failures: list[str] = []
        for url, memory in self._targets:
            try:
                text = fetch(url, self._timeout_s)
            except TransientError as error:
                failures.append(str(error))
                rows.append(_up(url, now_ms, 0.0))
                continue
            kept = memory.keep(OpenMetrics().parse(io.BytesIO(text), CaptureContext(url, now_ms)), now_ms)
            rows.extend(kept)
            rows.append(_up(url, now_ms, 1.0))
        if len(failures) == len(self._targets):
            raise TransientError("; ".join(failures))
        return rows


def _up(url: str, now_ms: int, value: float) -> Row:
    parts = urlsplit(url)
    label = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    values: dict[str, Value] = {
        "ts": now_ms, "chip": "scrape", "label": label, "quantity": "state", "unit": "", "value": value,
        "status": "up" if value else "down",
    }  # fmt: skip
    return Row("sensor_samples", values)


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"agent.scrape_urls: one address is malformed: {error}") from error
    return parts


def fetch(url: str, timeout_seconds: float) -> bytes:
    """Return what an exporter answers to a GET.

    Parameters
    ----------
    url: http or https, with host; credentials in it are refused.
    timeout_seconds: longest time for connecting and reading together.

    Raises
    ------
    ConfigError: the URL is not one.
    TransientError: unreachable, refused, redirected, too slow or too large.
    """
    # Imported when an exporter is asked: it costs 2 MB that other agents need not spend.
    import http.client

    parts = _parts(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ConfigError(
            f"agent.scrape_urls: {parts.scheme}://{parts.hostname or ''} is no http(s) address of an exporter"
        )
    where = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    deadline_s = time.monotonic() + timeout_seconds
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=timeout_seconds)
    try:
        path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": _ACCEPT, "Accept-Encoding": "identity"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise TransientError(f"the exporter at {where} answered {response.status}")
        body = bytearray()
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > ANSWER_LIMIT:
                raise TransientError(f"the exporter at {where} answered more than {ANSWER_LIMIT >> 20} MB")
            if time.monotonic() > deadline_s:
                raise TransientError(f"the exporter at {where} did not finish in {timeout_seconds:g} s")
        return bytes(body)
    except TimeoutError as error:
        raise TransientError(f"the exporter at {where} did not answer in {timeout_seconds:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise TransientError(f"the exporter at {where} cannot be read: {error or type(error).__name__}") from error
    finally:
        connection.close()

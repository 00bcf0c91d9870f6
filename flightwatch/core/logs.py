"""Logging set-up of every process: stdlib, text or JSON on stderr, secrets scrubbed."""

from __future__ import annotations

import json
import logging
import re
import sys
import time

from flightwatch.core.clock import iso_utc

_SECRET = re.compile(
    r"(?i)((?:password|passwd|secret|token|api[_-]?key|authorization|signature)[\"']?\s*[:=]\s*[\"']?)[^\s\"',;&]+"
)
_URL_CREDENTIALS = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@]+@")


def scrub(text: str) -> str:
    """Replace credentials in URLs and values of secret-looking keys with `***`."""
    return _SECRET.sub(r"\1***", _URL_CREDENTIALS.sub(r"\1***@", text))


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = iso_utc(int(record.created * 1000))
        text = f"{moment} {record.levelname.lower():7} {record.name}: {record.getMessage()}"
        if record.exc_info and record.levelno <= logging.DEBUG:
            text += "\n" + self.formatException(record.exc_info)
        elif record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        return scrub(text)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        body = {
            "ts": iso_utc(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": scrub(record.getMessage()),
        }
        if record.exc_info:
            body["exception"] = scrub(self.formatException(record.exc_info))
        return json.dumps(body, ensure_ascii=False)


def configure(level: str = "info", form: str = "text") -> None:
    """Send the log to stderr.

    Parameters
    ----------
    level: debug, info, warning or error.
    form: "text" or "json".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # kafka-python logs ten errors a second while a broker is away; the bus says it once, in one sentence.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    for noisy in ("clickhouse_connect", "urllib3", "werkzeug", "uvicorn", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class Occasionally:
    """Says yes at most once per period, so that a repeated message does not fill the log.

    Parameters
    ----------
    period_seconds: shortest time between two messages.
    """

    def __init__(self, period_seconds: float) -> None:
        self.period_seconds = period_seconds
        self._last = float("-inf")
        self.suppressed = 0

    def due(self) -> bool:
        """Return True when the caller may log now; otherwise count it in `suppressed`."""
        now = time.monotonic()
        if now - self._last >= self.period_seconds:
            self._last = now
            return True
        self.suppressed += 1
        return False

"""How every Kafka client of ours is configured, and what its errors mean for the caller."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafka import errors
from kafka.net.sasl.oauth import AbstractTokenProvider

from flightwatch.core.errors import BadRecord, ConfigError, FlightwatchError, Refused, TransientError
from flightwatch.pipeline.bus.settings import BusSettings

#: Room for the key and the record's own fields beside the value.
RECORD_OVERHEAD_BYTES = 65_536


class FileTokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """OAUTHBEARER token from a file that something else keeps fresh."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def token(self) -> str:
        """Return the present content of the file."""
        return self._path.read_text(encoding="utf-8").strip()

    def extensions(self) -> dict[str, str]:
        """Return no extensions."""
        return {}


def client_options(servers: Sequence[str], settings: BusSettings) -> dict[str, Any]:
    """Return the options that producer, consumer and admin client share.

    Raises
    ------
    ConfigError: the security settings do not fit together.
    """
    options: dict[str, Any] = {
        "bootstrap_servers": list(servers),
        "client_id": settings.kafka_client_id,
        "bootstrap_timeout_ms": 3_000,
        "request_timeout_ms": 20_000,
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 1_000,
        "security_protocol": settings.kafka_security_protocol,
    }
    if settings.kafka_security_protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise ConfigError(
            f"bus.kafka_security_protocol = {settings.kafka_security_protocol!r}: PLAINTEXT, SSL, SASL_PLAINTEXT or"
            " SASL_SSL"
        )
    if "SSL" in settings.kafka_security_protocol:
        options |= {
            "ssl_check_hostname": settings.kafka_ssl_check_hostname,
            "ssl_cafile": settings.kafka_ssl_cafile or None,
            "ssl_certfile": settings.kafka_ssl_certfile or None,
            "ssl_keyfile": settings.kafka_ssl_keyfile or None,
            "ssl_password": settings.kafka_ssl_key_password or None,
        }
    if settings.kafka_security_protocol.startswith("SASL"):
        options |= _sasl_options(settings)
    return options


def _sasl_options(settings: BusSettings) -> dict[str, Any]:
    mechanism = settings.kafka_sasl_mechanism
    if mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        if not settings.kafka_username or not settings.kafka_password:
            raise ConfigError(
                f"bus.kafka_sasl_mechanism = {mechanism} needs bus.kafka_username and FLIGHTWATCH_BUS_KAFKA_PASSWORD"
            )
        return {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": settings.kafka_username,
            "sasl_plain_password": settings.kafka_password,
        }
    if mechanism == "OAUTHBEARER":
        if not settings.kafka_oauth_token_file:
            raise ConfigError("bus.kafka_sasl_mechanism = OAUTHBEARER needs bus.kafka_oauth_token_file")
        provider = FileTokenProvider(settings.kafka_oauth_token_file)
        return {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": provider}
    if mechanism == "AWS_MSK_IAM":
        return {"sasl_mechanism": mechanism}
    raise ConfigError(
        f"bus.kafka_sasl_mechanism = {mechanism!r}: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM"
    )


def producer_options(servers: Sequence[str], settings: BusSettings) -> dict[str, Any]:
    """Return the producer's options: idempotent, acknowledged by all replicas, compressed, bounded waits."""
    largest = settings.max_message_bytes + RECORD_OVERHEAD_BYTES
    return client_options(servers, settings) | {
        "metrics_enabled": False,
        "acks": "all",
        "enable_idempotence": True,
        # Batches of rows are compressed already; what is not (commands, findings) is small.
        "compression_type": None,
        "batch_size": 1_000_000,
        "linger_ms": settings.kafka_linger_ms,
        "max_request_size": largest,
        "delivery_timeout_ms": settings.kafka_delivery_timeout_ms,
        "request_timeout_ms": min(20_000, settings.kafka_delivery_timeout_ms // 2),
        "max_block_ms": 2_000,
        "allow_auto_create_topics": False,
    }


def consumer_options(servers: Sequence[str], settings: BusSettings) -> dict[str, Any]:
    """Return the options of readers, in a group or not."""
    return client_options(servers, settings) | {
        "metrics_enabled": False,
        "enable_auto_commit": False,
        # Neither "earliest" (reads everything again after a topic was recreated) nor "latest" (skips): we decide.
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "max_partition_fetch_bytes": max(8_000_000, settings.max_message_bytes + RECORD_OVERHEAD_BYTES),
        "fetch_max_bytes": 50_000_000,
        "allow_auto_create_topics": False,
    }


def explain(error: Exception, doing: str) -> FlightwatchError:
    """Turn a client error into one that says what the caller can do.

    Parameters
    ----------
    doing: what failed, for the sentence: "publishing to T".
    """
    text = f"{doing}: {type(error).__name__}: {error}" if str(error) else f"{doing}: {type(error).__name__}"
    if isinstance(error, errors.KafkaConfigurationError):
        return ConfigError(text)
    too_large = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError, errors.InvalidRecordError)
    if isinstance(error, too_large):
        return BadRecord(text)
    refused = (errors.AuthorizationError, errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError)
    if isinstance(error, refused):
        return Refused(text)
    return TransientError(text)

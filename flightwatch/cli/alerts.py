"""`flightwatch alerts`: channels, what was sent to them, a test message, and a receiver to try with."""

from __future__ import annotations

import argparse
import getpass
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from flightwatch.cli.alert_parts import channels_of, routes_of
from flightwatch.cli.api_client import ApiClient
from flightwatch.cli.common_settings import CommonSettings, local_url
from flightwatch.cli.demo_inbox import readable
from flightwatch.cli.output import add_format, fitted
from flightwatch.cli.sections import load_settings
from flightwatch.cli.stopping import when_asked_to_stop
from flightwatch.core.clock import SystemClock, iso_utc
from flightwatch.core.errors import ConfigError, FlightwatchError, Refused
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode, Severity
from flightwatch.incidents.channel_test import send_test
from flightwatch.incidents.webhook_receiver import WebhookReceiver
from flightwatch.pipeline.control.alert_rows import ChannelState, StoredDelivery
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.settings import ControlSettings

HELP = "Channels to people: list them, send a test message, see what was sent, receive messages to try."
EPILOG = (
    "example:\n"
    "  flightwatch alerts channels\n"
    "  flightwatch alerts test oncall-slack\n"
    "  flightwatch alerts deliveries --channel oncall-slack\n"
    "  flightwatch alerts receive --port 9099      (then a channel of service webhook with that address)"
)
#: Of one channel in JSON.
_CHANNEL_KEYS = ("channel", "service", "language", "disclosure", "default", "waiting", "failures", "failing_since",
                 "last_error", "last_ok")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    _finish(verbs.add_parser("channels", help="channels, what they get by default, and how they do"))
    test = verbs.add_parser("test", help="send a test message to a channel; exit code 1 when it is not taken")
    test.add_argument("channel", help="name of the channel")
    _finish(test)
    deliveries = verbs.add_parser("deliveries", help="messages and attempts, the newest first")
    deliveries.add_argument("--incident", help="only of this incident")
    deliveries.add_argument("--channel", help="only to this channel")
    deliveries.add_argument("--limit", type=int, default=50, help="at most so many (default: 50)")
    _finish(deliveries)
    receive = verbs.add_parser("receive", help="receive messages of a channel of service webhook and print them")
    receive.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    receive.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    receive.add_argument("--secret-file", help="file with the channel's signing secret: others' messages are refused")
    add_format(receive)


def _finish(parser: argparse.ArgumentParser) -> None:
    add_format(parser)
    parser.add_argument("--data-dir", help="data folder of the instance (default: flightwatch.data_dir)")
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")


def run(arguments: argparse.Namespace) -> int:
    """Do what the verb says."""
    if arguments.verb == "receive":
        return _receive(arguments)
    settings = load_settings(arguments.config)
    if arguments.verb == "test":
        return _test(arguments, settings)
    common = settings.section(CommonSettings)
    if arguments.verb == "channels":
        running = _running(arguments.data_dir or common.data_dir)
        if running is not None:
            return _print_channels(arguments, running)
    url = local_url("sqlite", arguments.data_dir, "control.db") if arguments.data_dir else common.control_url
    with closing(open_control(url, settings.section(ControlSettings))) as control:
        if arguments.verb == "channels":
            return _print_channels(arguments, _configured(settings, control))
        return _deliveries(arguments, control)


def _test(arguments: argparse.Namespace, settings: Loaded) -> int:
    clock = SystemClock()
    channel = channels_of(settings, clock).get(arguments.channel)
    if channel is None:
        raise ConfigError(f"there is no enabled channel {arguments.channel!r}; see `flightwatch alerts channels`")
    cluster = settings.section(CommonSettings).cluster
    answer = send_test(channel, clock, cluster, getpass.getuser())
    if arguments.format == "json":
        print(json.dumps({"channel": channel.name, "ok": answer.ok, "http_status": answer.http_status,
                          "error": answer.error, "latency_ms": answer.latency_ms}))  # fmt: skip
    elif answer.ok:
        took = "" if answer.latency_ms is None else f" in {answer.latency_ms:.0f} ms"
        print(f"channel {channel.name} ({channel.notifier.service}) took the test message{took}")
    if not answer.ok:
        raise Refused(f"channel {channel.name} did not take the test message: {answer.error}")
    return ExitCode.DONE


def _running(data_dir: str) -> Sequence[Mapping[str, Any]] | None:
    """Return the channels of the instance that runs on a folder, the demo's own among them; None: none runs."""
    try:
        found = ApiClient.local(data_dir).get("/channels")["items"]
    except FlightwatchError:
        return None
    return [{"channel": one["name"], **one, "last_ok": one["last_ok_at"]} for one in found]


def _configured(settings: Loaded, control: Control) -> Sequence[Mapping[str, Any]]:
    """Return the channels of the configuration, for an instance that does not run or runs elsewhere."""
    channels = channels_of(settings, SystemClock())
    routes = routes_of(settings, channels)
    states = AlertRecords(control).channel_states()
    waiting = AlertRecords(control).waiting_by_channel()
    return [
        {
            "channel": name, "service": channel.notifier.service, "language": channel.settings.language,
            "disclosure": channel.disclosure.value, "waiting": waiting.get(name, 0),
            "default": [one.value for one in Severity if name in routes.default(one)], **_state(states.get(name)),
        }
        for name, channel in channels.items()
    ]  # fmt: skip


def _print_channels(arguments: argparse.Namespace, channels: Sequence[Mapping[str, Any]]) -> int:
    for row in channels:
        if arguments.format == "json":
            print(json.dumps({name: row[name] for name in _CHANNEL_KEYS}, ensure_ascii=False))
        else:
            default = ",".join(row["default"]) or "-"
            print(fitted(f"{row['channel']:16} {row['service']:12} {default:10} {_how(row)}", " " * 4))
    if not channels and arguments.format == "text":
        print("no channels: write [channels.NAME] sections; see docs/alerts.md")
    return ExitCode.DONE


def _state(state: ChannelState | None) -> dict[str, Any]:
    if state is None:
        return {"failures": 0, "failing_since": None, "last_error": None, "last_ok": None}
    return {
        "failures": state.failures, "failing_since": iso_utc(state.failing_since_ms),
        "last_error": state.last_error if state.failures else None, "last_ok": iso_utc(state.last_ok_at_ms),
    }  # fmt: skip


def _how(row: Mapping[str, Any]) -> str:
    if row["failures"]:
        return f"fails since {row['failing_since']}: {row['last_error']} ({row['waiting']} wait)"
    return "not used yet" if row["last_ok"] is None else f"last message taken {row['last_ok']}"


def _deliveries(arguments: argparse.Namespace, control: Control) -> int:
    found = AlertRecords(control).deliveries(
        incident=arguments.incident, channel=arguments.channel, limit=max(1, min(arguments.limit, 10_000))
    )
    for one in found:
        if arguments.format == "json":
            print(json.dumps(_row(one), ensure_ascii=False))
        else:
            error = f": {one.error}" if one.error else ""
            print(fitted(
                f"{iso_utc(one.updated_at_ms)}  {one.channel:16} {one.severity.value:4} {one.reason.value:12}"
                f" {one.state:8} {one.incident or one.thread}{error}"
            ))  # fmt: skip
    return ExitCode.DONE


def _row(one: StoredDelivery) -> dict[str, Any]:
    return {
        "id": one.id, "channel": one.channel, "incident": one.incident or None, "reason": one.reason.value,
        "severity": one.severity.value, "state": one.state, "attempts": one.attempts, "may_repeat": one.may_repeat,
        "created_at": iso_utc(one.created_at_ms), "updated_at": iso_utc(one.updated_at_ms),
        "http_status": one.http_status, "error": one.error, "latency_ms": one.latency_ms,
        "told_in": one.carried_by,
    }  # fmt: skip


def _receive(arguments: argparse.Namespace) -> int:
    secret = ""
    if arguments.secret_file:
        try:
            with open(arguments.secret_file, encoding="utf-8") as file:
                secret = file.read().strip()
        except OSError as error:
            raise ConfigError(f"cannot read {arguments.secret_file}: {error.strerror}") from error

    def show(message: Mapping[str, Any]) -> None:
        as_json = arguments.format == "json"
        print(json.dumps(message, ensure_ascii=False) if as_json else readable(message), flush=True)

    receiver = WebhookReceiver(arguments.host, arguments.port, show, secret)
    stop = threading.Event()
    when_asked_to_stop(stop.set)
    receiver.start()
    print(f"READY {receiver.url}", flush=True)
    stop.wait()
    receiver.stop()
    return ExitCode.DONE

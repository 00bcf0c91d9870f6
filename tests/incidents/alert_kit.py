"""Incidents, messages and channels for the tests of alerts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flightwatch.core.incident import AlertReason, Incident, IncidentState, Progress
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.alert_settings import ChannelSettings
from flightwatch.incidents.channels import Channel, build_channel
from flightwatch.incidents.contract import Alert
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from tests.incidents.http_receiver import LOOPBACK, Reply

OPENED_MS = 1_796_000_000_000
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 64


def incident(**changes: Any) -> Incident:
    base = Incident(
        id="5e1f00d5e1f00d5e1f00", revision=3, cluster="blue", state=IncidentState.OPEN, severity=Severity.P2,
        kind="slow", scope="device", class_="compute", title="gpu-0417 GPU 3 is slow",
        summary="rank 811 on gpu-0417 computes 23 % longer than its 31 role peers since step 81,240",
        opened_at_ms=OPENED_MS, updated_at_ms=OPENED_MS + 60_000, evidence_at_ms=OPENED_MS + 60_000,
        node="gpu-0417", device=3, rank=811, job="llm-70b", run="3", tenant="nlp", confidence=0.93,
        runner_up="its InfiniBand port mlx5_3 (11 %)", blames_hardware=True, progress=Progress.SLOWED,
        gpus_affected=1024, loss_gpu_hours_per_hour=187.0, lost_gpu_hours=12.5, findings_count=4,
    )  # fmt: skip
    return replace(base, **changes)


def alert(**changes: Any) -> Alert:
    base = Alert(
        key="5e1f00d5e1f00d5e1f00", idempotency_key="need-17-ops", reason=AlertReason.OPENED, severity=Severity.P2,
        title="P2 · slowed · llm-70b: gpu-0417 GPU 3 is slow", lead="P2 · job slowed\ngpu-0417 <b>GPU 3</b> & *more*",
        body="body", facts=(("Node", "gpu-0417, rack R17"), ("Cause", "compute <slow> [93 %]")),
        link="https://console.example/incidents/5e1f00d5e1f00d5e1f00", at_ms=OPENED_MS + 61_000,
        opened_at_ms=OPENED_MS, cluster="blue", incident=incident(), picture=PNG,
    )  # fmt: skip
    return replace(base, **changes)


#: What each service says when it took a message.
TAKEN: dict[str, Reply] = {
    "slack": Reply(200, {"ok": True, "channel": "C024BE91L", "ts": "1503435956.000247"}),
    "feishu": Reply(200, {"code": 0, "msg": "success", "data": {}}),
    "dingtalk": Reply(200, {"errcode": 0, "errmsg": "ok"}),
    "wecom": Reply(200, {"errcode": 0, "errmsg": "ok"}),
    "teams": Reply(202, b""),
    "discord": Reply(200, {"id": "1199876543210987654", "content": ""}),
    "telegram": Reply(200, {"ok": True, "result": {"message_id": 4711}}),
    "pagerduty": Reply(202, {"status": "success", "message": "Event processed", "dedup_key": "5e1f"}),
    "opsgenie": Reply(202, {"result": "Request will be processed", "took": 0.302, "requestId": "43a29c5c"}),
    "alertmanager": Reply(200, b""),
    "webhook": Reply(204, b""),
}


#: Settings of a bot where the service also has plain webhooks.
BOTS: dict[str, dict[str, Any]] = {
    "discord": {"secret_url": "", "token": "secret-token", "to": ("199737254929760256",)},
    "feishu": {"secret_url": "", "signing_secret": "", "user": "cli_a1", "token": "secret-token", "to": ("oc_820f",)},
}


def settings_of(service: str, url: str, **changes: Any) -> ChannelSettings:
    """Settings with which the channel talks to a local receiver."""
    own: dict[str, dict[str, Any]] = {
        "slack": {"url": f"{url}/api", "token": "xoxb-secret-token", "to": ("C024BE91L",)},
        "feishu": {"secret_url": f"{url}/open-apis/bot/v2/hook/secret-hook", "signing_secret": "secret-sign"},
        "dingtalk": {"secret_url": f"{url}/robot/send?access_token=secret-hook", "signing_secret": "SECsecret-sign"},
        "wecom": {"secret_url": f"{url}/cgi-bin/webhook/send?key=secret-hook"},
        "teams": {
            "secret_url": f"{url}/workflows/secret-hook/triggers/manual/paths/invoke?api-version=1&sig=secret-sig"
        },
        "discord": {"secret_url": f"{url}/api/webhooks/123/secret-hook"},
        "telegram": {"url": url, "token": "123:secret-token", "to": ("-100200300",)},
        "pagerduty": {"url": f"{url}/v2/enqueue", "token": "secretkey" + "0" * 23},
        "opsgenie": {"url": url, "token": "secret-key", "to": ("team:gpu-ops", "user:a@b.example")},
        "alertmanager": {"url": url},
        "webhook": {"url": f"{url}/hook", "signing_secret": "secret-sign"},
    }
    return ChannelSettings(service=service, **(own[service] | changes))


def outgoing(**changes: Any) -> Outgoing:
    return Outgoing(OutgoingSettings(allowed_addresses=LOOPBACK, **changes))


def channel(service: str, url: str, name: str = "ops", timeout_seconds: float = 5.0, **changes: Any) -> Channel:
    return build_channel(name, settings_of(service, url, **changes), outgoing(timeout_seconds=timeout_seconds))

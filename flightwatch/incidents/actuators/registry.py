"""Which actuators the settings ask for."""

from __future__ import annotations

from pathlib import Path

from flightwatch.core.clock import Clock
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.actuators.kubernetes import Kubernetes
from flightwatch.incidents.actuators.slurm import SlurmCommand, SlurmRest
from flightwatch.incidents.actuators.webhook import WebhookActuator
from flightwatch.incidents.contract import Actuator
from flightwatch.incidents.outgoing import Outgoing, checked_url, tls_context


def actuators_of(settings: ActionSettings, outgoing: Outgoing, clock: Clock) -> list[Actuator]:
    """Build the actuators.

    Raises
    ------
    ConfigError: a setting is wrong, or a file it names cannot be read.
    """
    settings.checked()
    found: list[Actuator] = []
    if settings.scheduler == "slurm":
        found.append(SlurmCommand(environment={"SLURM_CONF": settings.slurm_conf} if settings.slurm_conf else None))
    elif settings.scheduler == "slurm_rest":
        url = checked_url(settings.slurm_url, "actions.slurm_url")
        found.append(SlurmRest(outgoing, url, settings.slurm_user, settings.slurm_token))
    elif settings.scheduler == "kubernetes":
        url = checked_url(settings.kubernetes_url, "actions.kubernetes_url")
        tls = (
            tls_context(settings.kubernetes_ca_file, "actions.kubernetes_ca_file") if url.startswith("https") else None
        )
        found.append(Kubernetes(outgoing, url, Path(settings.kubernetes_token_file), tls))
    kinds = (("drain", "return") if settings.scheduler == "webhook" else ()) + settings.live_job_kinds
    if kinds:
        url = checked_url(settings.webhook_url, "actions.webhook_url")
        found.append(WebhookActuator(outgoing, url, settings.webhook_secret, kinds, clock))
    return found

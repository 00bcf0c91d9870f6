"""The section `[actions]`: what Flightwatch may do to nodes, and how far it may go."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.errors import ConfigError
from flightwatch.core.settings import setting

MODES = ("off", "dry_run", "approve", "automatic")
#: Kinds of failures that may be acted on without a person: the node has stopped, and its vendor says what to do.
FAIL_STOP = ("xid:79", "remap_failure", "dead_node")


@dataclass(frozen=True)
class ActionSettings:
    """What an operator may change about actions."""

    mode: str = setting("dry_run", "off, dry_run (say what would be done), approve, or automatic (for automatic_kinds)")
    automatic_kinds: tuple[str, ...] = setting(
        (), "kinds acted on without a person in mode automatic: xid:79, remap_failure, dead_node"
    )
    scheduler: str = setting("", "slurm, slurm_rest, kubernetes, webhook, or empty: none")
    slurm_conf: str = setting("", "SLURM_CONF for scontrol; empty: the environment's")
    slurm_url: str = setting("", "slurmrestd with its API version, for scheduler slurm_rest")
    slurm_user: str = setting("", "user of the token for slurmrestd")
    slurm_token: str = setting("", "JWT for slurmrestd", secret=True)
    kubernetes_url: str = setting("https://kubernetes.default.svc", "API server")
    kubernetes_token_file: str = setting(
        "/var/run/secrets/kubernetes.io/serviceaccount/token", "file with the service account's token"
    )
    kubernetes_ca_file: str = setting(
        "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", "certificate authority of the API server"
    )
    webhook_url: str = setting("", "receiver of actions, for scheduler webhook and for live-job kinds")
    webhook_secret: str = setting("", "key with which requests to the receiver are signed", secret=True)
    live_job_kinds: tuple[str, ...] = setting((), "drop_replica, replace_rank: what the webhook can do to a live job")
    window_minutes: int = setting(60, "window of the circuit breaker", minimum=1)
    max_nodes_in_window: int = setting(2, "nodes that may be drained in the window", minimum=0)
    max_percent_in_window: float = setting(1.0, "percent of the nodes that may be drained in the window", minimum=0)
    min_healthy_nodes: int = setting(1, "nodes that must stay usable after a drain", minimum=0)
    cool_down_hours: float = setting(6.0, "hours in which a node that was brought back is not drained again", minimum=0)
    repeat_days: int = setting(30, "days over which drains of one node are counted", minimum=1)
    repeat_drains: int = setting(3, "drains in that time that make a node a repeat offender", minimum=2)
    restart_minutes: float = setting(15.0, "minutes a job needs to start again, without the work it loses", minimum=0)
    loss_horizon_hours: float = setting(24.0, "hours over which the loss of going on is counted", minimum=0.1)
    proposal_hours: float = setting(24.0, "hours a proposal waits for an answer", minimum=0.1)

    def checked(self) -> ActionSettings:
        """Return itself.

        Raises
        ------
        ConfigError: an unknown mode, scheduler or kind, or a scheduler without what it needs.
        """
        if self.mode not in MODES:
            raise ConfigError(f"actions.mode = {self.mode!r}: known are {', '.join(MODES)}")
        for kind in self.automatic_kinds:
            if kind not in FAIL_STOP:
                raise ConfigError(
                    f"actions.automatic_kinds = {kind!r}: only {', '.join(FAIL_STOP)} may be acted on without a person"
                )
        for kind in self.live_job_kinds:
            if kind not in ("drop_replica", "replace_rank"):
                raise ConfigError(f"actions.live_job_kinds = {kind!r}: known are drop_replica, replace_rank")
        needs = {
            "": "",
            "slurm": "",
            "slurm_rest": "slurm_url",
            "kubernetes": "kubernetes_url",
            "webhook": "webhook_url",
        }
        if self.scheduler not in needs:
            raise ConfigError(f"actions.scheduler = {self.scheduler!r}: known are {', '.join(filter(None, needs))}")
        missing = needs[self.scheduler] or ("webhook_url" if self.live_job_kinds else "")
        if missing and not getattr(self, missing):
            raise ConfigError(f"actions.{missing} must be set for this")
        return self

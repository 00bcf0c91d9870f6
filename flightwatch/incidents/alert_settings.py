"""The section `[alerts]`: when messages repeat, when they are told together, and where the heartbeat goes."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class AlertSettings:
    """What an operator may change about messages."""

    console_url: str = setting("", "address of the console as people reach it, for links; empty: no links")
    remind_p1_minutes: float = setting(
        15.0,
        "minutes after which an unacknowledged P1 is told again, then twice as long each time; 0: never",
        minimum=0,
    )
    remind_p2_minutes: float = setting(60.0, "the same for P2", minimum=0)
    burst: int = setting(
        5, "messages of their own that a channel gets in a minute; what is more is told together", minimum=1
    )
    together_seconds: float = setting(30.0, "time between messages that tell several incidents together", minimum=1)
    together_p1_seconds: float = setting(10.0, "the same when one of them is P1", minimum=1)
    give_up_hours: float = setting(24.0, "hours in which a P1 or P2 message is tried again", minimum=0.1)
    give_up_p3_hours: float = setting(4.0, "the same for lesser ones", minimum=0.1)
    dead_after_minutes: float = setting(
        3.0, "minutes of failures after which the other channels hear that a channel is dead", minimum=0.1
    )
    facts_seconds: float = setting(1.5, "longest time spent on collecting facts for one message", minimum=0.1)
    restart_minutes: float = setting(
        15.0, "minutes a job needs to start again, where its past starts do not tell", minimum=0
    )
    keep_days: float = setting(90.0, "days for which finished deliveries are kept", minimum=1)
    heartbeat_url: str = setting(
        "", "address of an outside dead-man's switch that is called while messages can be sent", secret=True
    )
    heartbeat_seconds: float = setting(60.0, "time between its calls", minimum=5)

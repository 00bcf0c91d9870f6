"""What the agent does with each command it accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flightwatch.collectors.profiler.service import Profiler
from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import Command

Handler = Callable[[Command], None]
#: What a `collect_evidence` command means that does not say what it wants.
DEFAULT_EVIDENCE = "hang"


def command_handlers(profiler: Profiler | None, evidence: Mapping[str, Handler]) -> Mapping[str, Handler]:
    """Return command type to what does it; without a profiler its commands are unknown to the agent.

    Parameters
    ----------
    evidence: kind of evidence (a word of the command's argument `what`) to what collects it. A provider checks the
        command at once (BadRecord) and collects on a thread of its own.
    """
    handlers: dict[str, Handler] = {"collect_evidence": EvidenceCommands(evidence).collect}
    if profiler is not None:
        handlers |= {"profile_start": profiler.profile_start, "profile_stop": profiler.profile_stop}
    return handlers


class EvidenceCommands:
    """Hands a `collect_evidence` command to the provider of each kind it asks for."""

    def __init__(self, providers: Mapping[str, Handler]) -> None:
        self._providers = providers

    def collect(self, command: Command) -> None:
        """Collect everything that is asked for.

        Raises
        ------
        BadRecord: a kind that this agent does not have, or a provider refuses the command; the others collected.
        """
        problems = []
        for kind in dict.fromkeys(str(command.arguments.get("what", DEFAULT_EVIDENCE)).split(",")):
            provider = self._providers.get(kind)
            if provider is None:
                problems.append(f"command {command.id}: evidence {kind!r} is not collected here")
                continue
            try:
                provider(command)
            except BadRecord as error:
                problems.append(str(error))
        if problems:
            raise BadRecord("; ".join(problems))

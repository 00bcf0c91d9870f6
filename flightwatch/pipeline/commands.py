"""Commands from the control server to one node: typed, limited, signed, each done once.

A message is `FC`, a version byte, an Ed25519 signature of 64 bytes and a JSON object. Agents hold the
public keys of control servers and do nothing that is not listed in `ALLOWED`: no command runs a program
or names a path. Messages that fail a check are counted and logged, never answered.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, cast

from flightwatch.core import ed25519
from flightwatch.core.clock import Clock
from flightwatch.core.errors import BadRecord, TransientError
from flightwatch.core.logs import Occasionally
from flightwatch.core.protocols import Command, Value
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.base import Ack, Bus, Partition

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 16_384
#: How far back an agent looks when it starts; a command that expires later than that would be missed.
LOOK_BACK_MS = 600_000
MAX_LIFETIME_MS = LOOK_BACK_MS
#: A control server's clock may be this far ahead of the node's.
CLOCK_TOLERANCE_MS = 60_000
_PREFIX = b"FC\x01"
_SIGNATURE_BYTES = 64
_CONTEXT = b"flightwatch command 1\0"
_READ_SECONDS = 2.0
_REWIND_CHECK_SECONDS = 30.0


class CommandType(str, Enum):
    """Everything a control server can ask of an agent."""

    PROFILE_START = "profile_start"
    PROFILE_STOP = "profile_stop"
    COLLECT_EVIDENCE = "collect_evidence"


@dataclass(frozen=True, slots=True)
class Argument:
    """What one argument may be.

    Attributes
    ----------
    kind: int, bool, str or list (of int).
    most: largest int, longest str (characters), longest list; list items lie in 0..10,000,000.
    required: the command is refused without it.
    """

    kind: type
    most: int = 0
    required: bool = False

    def accepts(self, value: object) -> bool:
        """Say whether a value is allowed."""
        if self.kind is list:
            return (
                isinstance(value, list)
                and len(value) <= self.most
                and all(type(item) is int and 0 <= item <= 10_000_000 for item in value)
            )
        if type(value) is not self.kind:
            return False
        if self.kind is int:
            return 0 <= cast(int, value) <= self.most
        return self.kind is bool or (len(cast(str, value)) <= self.most and cast(str, value).isprintable())


_REQUEST = Argument(str, 64, required=True)
#: Arguments by type; anything else is refused.
ALLOWED: Mapping[CommandType, Mapping[str, Argument]] = {
    CommandType.PROFILE_START: {
        "request": _REQUEST,
        "run": Argument(str, 128),
        "ranks": Argument(list, 64, required=True),
        "steps": Argument(int, 100, required=True),
        "start_step": Argument(int, 10**12),
        "wait_steps": Argument(int, 10**6),
        "max_seconds": Argument(int, 600),
        "max_bytes": Argument(int, 100_000_000_000),
        "stacks": Argument(bool),
        "shapes": Argument(bool),
        "memory": Argument(bool),
        # Times of the model's blocks by the probe instead of a trace.
        "blocks": Argument(bool),
    },
    CommandType.PROFILE_STOP: {"request": _REQUEST, "ranks": Argument(list, 64)},
    CommandType.COLLECT_EVIDENCE: {
        "request": _REQUEST,
        # Kinds of evidence joined by commas: "ring" (per-op detail), "hang" (flight recorder and stacks).
        "what": Argument(str, 64),
        "run": Argument(str, 128),
        "ranks": Argument(list, 64),
        "since_ms": Argument(int, 2**42),
        "until_ms": Argument(int, 2**42),
        "from_step": Argument(int, 10**12),
        "to_step": Argument(int, 10**12),
    },
}


def seal(command: Command, sign: Callable[[bytes], bytes]) -> bytes:
    """Return the signed message of a command.

    Parameters
    ----------
    sign: Ed25519 signature by the control server's private key.

    Raises
    ------
    BadRecord: type, arguments, size or lifetime are not allowed, so no agent would do it.
    """
    _check(command)
    body = json.dumps(asdict(command), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogateescape")
    message = _PREFIX + sign(_CONTEXT + body) + body
    if len(message) > MAX_MESSAGE_BYTES:
        raise BadRecord(f"a command of {len(message)} bytes is above {MAX_MESSAGE_BYTES}")
    return message


def unseal(message: bytes, public_keys: Sequence[bytes]) -> Command:
    """Return the command of a message signed by one of the keys.

    Raises
    ------
    BadRecord: not a command, not signed by these keys, or not allowed.
    """
    start = len(_PREFIX) + _SIGNATURE_BYTES
    if len(message) > MAX_MESSAGE_BYTES or len(message) <= start or not message.startswith(_PREFIX):
        raise BadRecord("not a command of a version this agent knows")
    signature, body = message[len(_PREFIX) : start], message[start:]
    # The signature first: nothing of an unsigned message is parsed.
    if not any(ed25519.verify(key, _CONTEXT + body, signature) for key in public_keys):
        raise BadRecord("the signature is by none of agent.control_keys")
    try:
        command = Command(**json.loads(body.decode("utf-8", "surrogateescape")))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRecord(f"a signed command that cannot be read: {error}") from error
    _check(command)
    return command


def _check(command: Command) -> None:
    texts = (command.id, command.type, command.node, command.job, command.actor)
    if not all(isinstance(text, str) and len(text) <= 256 for text in texts) or not command.id:
        raise BadRecord("a command's id, type, node, job and actor are texts of at most 256 characters")
    times = (command.issued_at_ms, command.expires_at_ms)
    if not all(type(time) is int for time in times) or not 0 < times[1] - times[0] <= MAX_LIFETIME_MS:
        raise BadRecord(f"command {command.id}: it must expire within {MAX_LIFETIME_MS // 1000} s of its issue")
    if command.type not in [known.value for known in CommandType]:
        raise BadRecord(f"command {command.id}: type {command.type!r} is not allowed")
    rules = ALLOWED[CommandType(command.type)]
    arguments = command.arguments
    if not isinstance(arguments, Mapping):
        raise BadRecord(f"command {command.id}: its arguments are not an object")
    for name, value in arguments.items():
        if name not in rules or not rules[name].accepts(value):
            raise BadRecord(f"command {command.id}: argument {name!r} is unknown or out of its limits")
    missing = [name for name, rule in rules.items() if rule.required and name not in arguments]
    if missing:
        raise BadRecord(f"command {command.id}: argument {missing[0]!r} is missing")


def publish(bus: Bus, command: Command, sign: Callable[[bytes], bytes]) -> Future[Ack]:
    """Send a command to its node. Raises BadRecord as `seal` does, Backpressure and ConfigError as the bus does."""
    return bus.publish(Topic.COMMANDS.value, command.node, seal(command, sign))


class SeenIds:
    """Ids of commands that were delivered, on disk, until they expire: a restart does nothing twice."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._expiry_by_id: dict[str, int] = {}
        try:
            with open(path, encoding="utf-8") as file:
                loaded: Any = json.load(file)
            self._expiry_by_id = {str(name): int(expiry) for name, expiry in loaded.items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, AttributeError) as error:
            logger.warning("%s cannot be read (%s): commands of the last minutes may be done again", path, error)

    def __contains__(self, command_id: object) -> bool:
        return command_id in self._expiry_by_id

    def add(self, command: Command, now_ms: int) -> None:
        """Remember a command. Raises TransientError when that cannot be made durable."""
        kept = {name: expiry for name, expiry in self._expiry_by_id.items() if expiry + CLOCK_TOLERANCE_MS > now_ms}
        kept[command.id] = command.expires_at_ms
        temporary = f"{self._path}.new"
        try:
            handle = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(kept, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except OSError as error:
            raise TransientError(f"{self._path}: {error.strerror}") from error
        self._expiry_by_id = kept


class CommandReader:
    """CommandSource of one node: reads its own partition without a group, from 10 min before the start.

    Parameters
    ----------
    public_keys: Ed25519 keys of control servers, 32 bytes each.
    seen_path: file of delivered ids.
    """

    def __init__(self, bus: Bus, node: str, public_keys: Sequence[bytes], clock: Clock, seen_path: str) -> None:
        self._bus = bus
        self._node = node
        self._public_keys = tuple(public_keys)
        self._clock = clock
        self._seen = SeenIds(seen_path)
        self._partition: Partition | None = None
        self._offset = 0
        self._next_read_s = self._next_check_s = 0.0
        self._refusals = Occasionally(10.0)
        #: Messages for this node that failed a check, for `self_metrics`.
        self.refused = 0

    def poll(self) -> Sequence[Command]:
        """Return new commands, oldest first. Asks the bus at most every 2 s.

        Raises
        ------
        TransientError: the bus is away; call again.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._next_read_s:
            return []
        self._next_read_s = now_s + _READ_SECONDS
        self._find_place(now_s)
        if self._partition is None:
            return []
        commands: list[Command] = []
        for message in self._bus.read(self._partition, self._offset, 1_000_000):
            command = self._accept(message.key, message.value)
            if command is not None:
                try:
                    self._seen.add(command, self._clock.now_ms())
                except TransientError:
                    # Not remembered, so not done; those before it are, and this one is read again.
                    if commands:
                        return commands
                    raise
                commands.append(command)
            self._offset = message.offset + 1
        return commands

    def _find_place(self, now_s: float) -> None:
        start_ms = self._clock.now_ms() - LOOK_BACK_MS
        if self._partition is None:
            partition = self._bus.partition_for(Topic.COMMANDS.value, self._node)
            self._offset = self._bus.offset_at(partition, start_ms)
            self._partition = partition
        elif now_s >= self._next_check_s and self._bus.end_offset(self._partition) < self._offset:
            # The topic was made anew: its offsets began again.
            self._offset = self._bus.offset_at(self._partition, start_ms)
        else:
            return
        self._next_check_s = now_s + _REWIND_CHECK_SECONDS

    def _accept(self, key: str, value: bytes) -> Command | None:
        if key != self._node:
            return None
        try:
            command = unseal(value, self._public_keys)
        except BadRecord as error:
            self._refuse(str(error))
            return None
        now_ms = self._clock.now_ms()
        if command.node != self._node:
            self._refuse(f"command {command.id} is for node {command.node!r}")
        elif not command.issued_at_ms - CLOCK_TOLERANCE_MS <= now_ms <= command.expires_at_ms:
            self._refuse(f"command {command.id} has expired or is from the future")
        elif command.id not in self._seen:
            return command
        return None

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        if self._refusals.due():
            logger.warning("a command is refused: %s", reason)


def command_of(
    command_id: str,
    kind: CommandType,
    node: str,
    actor: str,
    now_ms: int,
    arguments: Mapping[str, Value],
    job: str = "",
) -> Command:
    """Return a command issued now that lives as long as agents look back."""
    return Command(command_id, kind.value, node, job, actor, now_ms, now_ms + MAX_LIFETIME_MS, dict(arguments))

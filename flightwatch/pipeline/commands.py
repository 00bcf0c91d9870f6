"""Signed commands from the control server to one node, over the bus.

A message is one JSON object, a newline and the Ed25519 signature of the object's bytes in hexadecimal.
An agent does a command only when a key it was given signed it, it names this node, it has not
expired, and its id has not been seen; ids seen outlive a restart. Nothing in a command runs a program: its type
selects one of the agent's own actions, which check their arguments.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence

from flightwatch.core.clock import Clock
from flightwatch.core.ed25519 import verify
from flightwatch.core.errors import BadRecord, TransientError
from flightwatch.core.protocols import Command
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.base import Bus, Partition

logger = logging.getLogger(__name__)

#: A starting agent reads the commands of this last while.
LOOK_BACK_MS = 600_000
#: A command lives at most this long, so that ids need not be remembered longer.
LONGEST_LIFE_MS = 3_600_000
#: A command may be issued so much in the future of the agent's clock.
CLOCK_TOLERANCE_MS = 300_000
MAX_COMMAND_BYTES = 64_000
_READ_BYTES = 500_000
_SEEN_LIMIT = 10_000
_FIELDS: Mapping[str, type] = {
    "id": str, "type": str, "node": str, "job": str, "actor": str, "issued_at_ms": int, "expires_at_ms": int,
    "arguments": dict,
}  # fmt: skip


def seal_command(command: Command, sign: Callable[[bytes], bytes]) -> bytes:
    """Return the message of a command.

    Parameters
    ----------
    sign: signs bytes with the control server's key (`SigningKey.sign`).
    """
    fields = {name: getattr(command, name) for name in _FIELDS}
    fields["arguments"] = dict(command.arguments)
    body = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    return body + b"\n" + sign(body).hex().encode()


def open_command(message: bytes, keys: Sequence[bytes], node: str, now_ms: int) -> Command | None:
    """Return the command in a message when it is for this node.

    Returns
    -------
    None when it is for another node or has expired.

    Raises
    ------
    BadRecord: not a command, signed by nobody known, or issued in the future or for too long.
    """
    body, _, signature_hex = message.rpartition(b"\n")
    if not body or len(message) > MAX_COMMAND_BYTES:
        raise BadRecord("not a command")
    try:
        signature = bytes.fromhex(signature_hex.decode("ascii"))
    except ValueError as error:
        raise BadRecord("the signature is not hexadecimal") from error
    if not any(verify(key, body, signature) for key in keys):
        raise BadRecord("no known key signed the command")
    command = _parse(body)
    if command.node != node or command.expires_at_ms < now_ms:
        return None
    if command.issued_at_ms > now_ms + CLOCK_TOLERANCE_MS:
        raise BadRecord("the command was issued in the future")
    if command.expires_at_ms - command.issued_at_ms > LONGEST_LIFE_MS:
        raise BadRecord("the command lives longer than an hour")
    return command


def _parse(body: bytes) -> Command:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRecord("the command is not JSON") from error
    if not isinstance(fields, dict) or any(type(fields.get(name)) is not kind for name, kind in _FIELDS.items()):
        raise BadRecord("the command lacks a field, or one has another type")
    return Command(**{name: fields[name] for name in _FIELDS})


class CommandReader:
    """Commands for one node. Used by one thread.

    Parameters
    ----------
    keys: public keys of control servers; without one nothing is read.
    state_file: where ids of commands seen are kept over a restart.
    """

    def __init__(self, bus: Bus, node: str, keys: Sequence[bytes], clock: Clock, state_file: str) -> None:
        self._bus = bus
        self._node = node
        self._keys = tuple(keys)
        self._clock = clock
        self._state_file = state_file
        self._seen = self._load()
        self._partition: Partition | None = None
        self._offset = 0

    def poll(self) -> Sequence[Command]:
        """Return new commands, oldest first. Raises TransientError while the bus is away."""
        if not self._keys:
            return ()
        now_ms = self._clock.now_ms()
        if self._partition is None:
            self._partition = self._bus.partition_for(Topic.COMMANDS.value, self._node)
            self._offset = self._bus.offset_at(self._partition, now_ms - LOOK_BACK_MS)
        found: list[Command] = []
        for message in self._bus.read(self._partition, self._offset, _READ_BYTES):
            self._offset = message.offset + 1
            # Several nodes share a partition: the key tells theirs apart before any signature is checked.
            if message.key != self._node:
                continue
            try:
                command = open_command(message.value, self._keys, self._node, now_ms)
            except BadRecord as error:
                logger.warning("a command at offset %d is refused: %s", message.offset, error.reason)
                continue
            if command is not None and command.id not in self._seen:
                self._seen[command.id] = command.expires_at_ms
                found.append(command)
        if found:
            self._save(now_ms)
        return found

    def _load(self) -> dict[str, int]:
        try:
            with open(self._state_file, encoding="utf-8") as file:
                content = json.load(file)
            return {str(name): int(expires_ms) for name, expires_ms in content.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError):
            logger.warning("%s cannot be read: commands of the last minutes may be done again", self._state_file)
            return {}

    def _save(self, now_ms: int) -> None:
        """Keep ids before the commands are done: a crash in between loses one rather than doing it twice."""
        self._seen = {name: expires_ms for name, expires_ms in self._seen.items() if expires_ms >= now_ms}
        while len(self._seen) > _SEEN_LIMIT:
            del self._seen[next(iter(self._seen))]
        temporary = self._state_file + ".new"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(self._seen, file)
            os.replace(temporary, self._state_file)
        except OSError as error:
            raise TransientError(f"{temporary}: {error.strerror}") from error

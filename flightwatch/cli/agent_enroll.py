"""`flightwatch agent enroll|revoke`: make the node's key and register its public half; withdraw it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flightwatch.cli.common_settings import CommonSettings, local_path
from flightwatch.collectors.identity import checked_node_name, load_identity, make_identity
from flightwatch.core.errors import FlightwatchError, Refused
from flightwatch.core.vocabulary import ExitCode

if TYPE_CHECKING:
    from flightwatch.pipeline.control.agents import AgentKeys

#: Lets a key (64 hexadecimal digits) sign for a node; returns False when it was known already.
Register = Callable[[str, str], bool]


def enroll(common: CommonSettings, node: str | None, public_key: str | None, register: Register, is_local: bool) -> int:
    """Make a key on this node and register it, or register a key made elsewhere.

    On a node that cannot reach the control database the command to run where it is goes to stdout.

    Parameters
    ----------
    public_key: key made elsewhere; None makes (or finds) this node's own.
    register: writes to the control database.
    is_local: the control database is on this machine or named in its configuration.

    Raises
    ------
    ConfigError: node name or key is not one, the key file is damaged, or the key was revoked.
    """
    name = checked_node_name(node or common.node_name, "--node" if node else "flightwatch.node")
    if public_key is not None:
        known = not register(name, public_key)
        print(f"{name}: this key was enrolled already" if known else f"{name}: enrolled")
        return ExitCode.DONE
    folder = os.path.join(common.data_dir, "agent")
    identity = load_identity(folder) or make_identity(folder)
    text = identity.public_key.hex()
    if is_local:
        try:
            register(name, text)
        except FlightwatchError as error:
            print(f"flightwatch agent enroll: {error}", file=sys.stderr)
        else:
            print(f"{name}: enrolled")
            return ExitCode.DONE
    print("run this where the control database is:", file=sys.stderr)
    print(f"flightwatch agent enroll --node {name} --public-key {text}")
    return ExitCode.DONE


def control_is_local(common: CommonSettings) -> bool:
    """Say whether this machine has the control database: its SQLite file, or the address of a server."""
    url = common.control_url
    return urlsplit(url).scheme != "sqlite" or local_path(url).exists()


def revoke(common: CommonSettings, node: str | None, public_key: str | None, config: str | None) -> int:
    """Withdraw a node's key, or all of them: ingest puts its batches aside from then on.

    Raises
    ------
    ConfigError: not a node name. Refused: the control database is elsewhere, or the node has no valid key.
    """
    name = checked_node_name(node or common.node_name, "--node" if node else "flightwatch.node")
    if not control_is_local(common):
        raise Refused("run this where the control database is")
    with _agent_keys(config) as keys:
        count = keys.revoke(name, public_key)
    if not count:
        raise Refused(f"{name} has no valid key{' with these digits' if public_key else ''}")
    print(f"{name}: {count} key{'s' if count > 1 else ''} revoked; a new `flightwatch agent enroll` gives it another")
    return ExitCode.DONE


def register_with(config: str | None) -> Register:
    """Return a function that registers keys in the control database of a configuration file."""

    def register(node: str, public_key: str) -> bool:
        with _agent_keys(config) as keys:
            return keys.enroll(node, public_key)

    return register


@contextmanager
def _agent_keys(config: str | None) -> Iterator[AgentKeys]:
    from flightwatch.cli.sections import load_settings
    from flightwatch.pipeline.control.database import open_control
    from flightwatch.pipeline.control.settings import ControlSettings

    settings = load_settings(config)
    control = open_control(settings.section(CommonSettings).control_url, settings.section(ControlSettings))
    try:
        yield control.agent_keys
    finally:
        control.close()

"""`flightwatch agent enroll`: make the node's key, and let the control database know its public half."""

from __future__ import annotations

import os

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.collectors.identity import checked_node_name, load_identity, make_identity
from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import ExitCode

_KEY_BYTES = 32


def enroll(common: CommonSettings, node: str | None, public_key: str | None) -> int:
    """Make a key on this node, or register a key made elsewhere.

    Raises
    ------
    ConfigError: node name or key is not one, or the key file is damaged.
    """
    name = checked_node_name(node or common.node_name, "--node" if node else "flightwatch.node")
    if public_key is not None:
        return _register_given(common, name, public_key)
    folder = os.path.join(common.data_dir, "agent")
    identity = load_identity(folder) or make_identity(folder)
    text = identity.public_key.hex()
    print(f"flightwatch agent enroll --node {name} --public-key {text}")
    return ExitCode.DONE

"""Public keys of agents: which key may sign for which node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import sqlalchemy as sa

from flightwatch.core.errors import ConfigError
from flightwatch.pipeline.control.schema import AGENT_KEYS

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_KEY = re.compile(r"[0-9a-f]{64}")


class AgentKeys:
    """Ed25519 public keys by node. Several keys of one node are valid while it changes from one to the next."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def enroll(self, node: str, public_key: str, agent_id: str | None = None) -> bool:
        """Let a key sign for a node; a revoked key stays revoked.

        Parameters
        ----------
        node: node name.
        public_key: 64 hexadecimal digits.
        agent_id: id of the agent's installation where it is known.

        Returns
        -------
        True when the key is new for the node.

        Raises
        ------
        ConfigError: not a node name, not a key, or the key was revoked.
        """
        key = public_key.lower()
        if not _NODE.fullmatch(node):
            raise ConfigError(f"{node!r} is not a node name: letters, digits, dots, dashes and underscores")
        if not _KEY.fullmatch(key):
            raise ConfigError("a public key has 64 hexadecimal digits")
        with self._control.transaction() as connection:
            row = connection.execute(
                sa.select(AGENT_KEYS).where(AGENT_KEYS.c.node == node, AGENT_KEYS.c.public_key == key)
            ).one_or_none()
            if row is not None and row.revoked_at_ms is not None:
                raise ConfigError(f"this key of {node} was revoked: make a new one")
            if row is not None:
                return False
            connection.execute(
                sa.insert(AGENT_KEYS).values(
                    node=node, public_key=key, agent_id=agent_id, enrolled_at_ms=self._control.now_ms(connection)
                )
            )
            return True

    def revoke(self, node: str, public_key: str | None = None) -> int:
        """Refuse a key of a node, or all of them, from now on; return how many were valid."""
        with self._control.transaction() as connection:
            condition = [AGENT_KEYS.c.node == node, AGENT_KEYS.c.revoked_at_ms.is_(None)]
            if public_key is not None:
                condition.append(AGENT_KEYS.c.public_key == public_key.lower())
            result = connection.execute(
                sa.update(AGENT_KEYS).where(*condition).values(revoked_at_ms=self._control.now_ms(connection))
            )
            return int(result.rowcount)

    def valid(self) -> dict[str, frozenset[str]]:
        """Return the valid keys of every enrolled node; a node whose keys are all revoked has an empty set."""
        keys: dict[str, set[str]] = {}
        with self._control.reading() as connection:
            for row in connection.execute(sa.select(AGENT_KEYS)):
                mine = keys.setdefault(row.node, set())
                if row.revoked_at_ms is None:
                    mine.add(row.public_key)
        return {node: frozenset(mine) for node, mine in keys.items()}

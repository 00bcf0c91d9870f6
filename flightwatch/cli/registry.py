"""All commands: name, module, one line of help. A new command is one file here and one line below."""

from __future__ import annotations

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("config", "flightwatch.cli.config", "check the configuration, or write a commented file"),
)

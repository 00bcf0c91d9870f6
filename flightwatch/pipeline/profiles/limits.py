"""How large one profile may be."""

from __future__ import annotations

from flightwatch.core.errors import ConfigError
from flightwatch.pipeline.profiles.settings import ProfilesSettings

#: What nobody may ask for, whatever the settings say.
MOST_RANKS = 64
MOST_STEPS = 100
MOST_BYTES = 100_000_000_000
#: What times of blocks may take in the store, all ranks of a request together.
BLOCK_BYTES = 50_000_000
LONGEST_SECONDS = 600


def check_size(
    settings: ProfilesSettings, *, ranks: int, steps: int, max_bytes: int, seconds: int, override: bool, hint: str = ""
) -> None:
    """Refuse a profile that is too large, or nothing.

    Parameters
    ----------
    override: up to the hard limits, not those of the settings.
    hint: how the asker could go up to the hard limits.

    Raises
    ------
    ConfigError: names what is too large and what is allowed.
    """
    checks = (
        ("ranks", ranks, settings.most_ranks, MOST_RANKS),
        ("steps", steps, settings.most_steps, MOST_STEPS),
        ("bytes", max_bytes, settings.most_bytes, MOST_BYTES),
        ("seconds", seconds, LONGEST_SECONDS, LONGEST_SECONDS),
    )
    for name, value, most, most_ever in checks:
        allowed = most_ever if override else most
        if not 0 < value <= allowed:
            more = f"; {hint}" if hint and 0 < value <= most_ever else ""
            raise ConfigError(f"a profile of {value} {name}: 1 to {allowed} are allowed{more}")


def check_block_size(*, ranks: int, steps: int, max_bytes: int, seconds: int) -> None:
    """Refuse a request for times of blocks that is too large, or of nothing: the probe's work is cheap, its rows not.

    Raises
    ------
    ConfigError: names what is too large and what is allowed.
    """
    checks = (
        ("ranks", ranks, MOST_RANKS),
        ("steps", steps, MOST_STEPS),
        ("bytes", max_bytes, BLOCK_BYTES),
        ("seconds", seconds, LONGEST_SECONDS),
    )
    for name, value, most in checks:
        if not 0 < value <= most:
            raise ConfigError(f"times of blocks of {value} {name}: 1 to {most} are allowed")

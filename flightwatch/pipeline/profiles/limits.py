"""How large one profile may be."""

from __future__ import annotations

from flightwatch.core.errors import ConfigError
from flightwatch.pipeline.profiles.settings import ProfilesSettings

#: What nobody may ask for, whatever the settings say.
MOST_RANKS = 64
MOST_STEPS = 100
MOST_BYTES = 100_000_000_000
LONGEST_SECONDS = 600


def check_size(
    settings: ProfilesSettings, *, ranks: int, steps: int, max_bytes: int, seconds: int, override: bool
) -> None:
    """Refuse a profile that is too large, or nothing.

    Parameters
    ----------
    override: up to the hard limits, not those of the settings.

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
            raise ConfigError(f"a profile of {value} {name}: 1 to {allowed} are allowed")

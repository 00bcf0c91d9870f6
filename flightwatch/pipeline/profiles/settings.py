"""The section `[profiles]`: limits of one profile and where traces are kept."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class ProfilesSettings:
    """What the control server allows and where it keeps traces."""

    folder: str = setting("", "folder of the traces; empty: profiles in data_dir")
    object_stores: tuple[str, ...] = setting(
        (), "addresses s3://BUCKET/PREFIX at or below which `profile start --to` may store traces; empty: none"
    )
    s3_endpoint: str = setting("", "http(s)://HOST:PORT of the object store; empty: AWS S3 of s3_region")
    s3_region: str = setting("us-east-1", "region that requests to the object store are signed for")
    most_ranks: int = setting(16, "ranks of one profile unless overridden", minimum=1)
    most_steps: int = setting(10, "steps of one profile unless overridden", minimum=1)
    most_bytes: int = setting(20_000_000_000, "bytes of one profile's traces unless overridden", minimum=1)
    target_seconds: float = setting(180.0, "a rank that no agent named for so long is gone", minimum=10.0)

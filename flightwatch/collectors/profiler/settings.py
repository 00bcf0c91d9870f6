"""The section `[profiler]`: on-demand profiles and hang evidence of jobs on this node."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass

from flightwatch.collectors.profiler.folder import LONGEST
from flightwatch.core.settings import setting

#: What jobs get as KINETO_IPC_SOCKET_DIR unless told otherwise.
DEFAULT_FOLDER = "/run/flightwatch/profiler"


@dataclass(frozen=True)
class ProfilerSettings:
    """The agent's side of profiles."""

    enabled: bool = setting(True, "answer the profilers of training processes that ask (KINETO_USE_DAEMON)")
    socket_dir: str = setting(
        "",
        "absolute folder of the profiler's socket, given to jobs as KINETO_IPC_SOCKET_DIR, at most 54 characters, no"
        " links; empty: `profiler` beside the probe's socket",
    )
    abstract: bool = setting(True, "also answer jobs without KINETO_IPC_SOCKET_DIR, unless dynolog does")
    pause_counters: bool = setting(
        True, "pause DCGM's profiling counters (dcgmi profile) while a rank records: they get in each other's way"
    )
    hang_seconds: float = setting(
        10.0,
        "collect hang evidence when a job makes no step for this long and for five of its longest recent steps;"
        " 0: only on command",
        minimum=0.0,
    )


def profiler_folder(settings: ProfilerSettings, data_dir: str, default_data_dir: str) -> str:
    """Return the folder of the profiler's socket: the same text for the agent and for `flightwatch run`.

    An installation in a folder of its own has its sockets there; where that path is too long for a unix socket,
    they are in /tmp under a name made from it.
    """
    if settings.socket_dir:
        return settings.socket_dir
    if data_dir == default_data_dir:
        return DEFAULT_FOLDER
    own = os.path.join(os.path.realpath(data_dir), "profiler")
    return own if len(os.fsencode(own)) <= LONGEST else f"/tmp/flightwatch-{zlib.crc32(os.fsencode(own)):08x}"

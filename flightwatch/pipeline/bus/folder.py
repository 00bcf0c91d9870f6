"""The folder of a local log: one owner, closed to others, on a disk of this machine."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from flightwatch.core.errors import ConfigError

#: File systems on which SQLite's shared memory and locks do not hold between machines.
NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre"),
        *("ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs"),
    )
)
_FUSE_NETWORK = frozenset(
    (
        *("ceph", "ceph-fuse", "glusterfs", "goofys", "gcsfuse", "juicefs", "moosefs", "mfs", "rclone"),
        *("s3fs", "seaweedfs", "sshfs", "curlftpfs"),
    )
)
MOUNTS = Path("/proc/self/mounts")


def prepare(folder: Path, mounts: Path = MOUNTS) -> None:
    """Create the folder (0700), or check that an existing one is ours, private and local.

    Raises
    ------
    ConfigError: cannot be created or written, belongs to another user, or lies on a network file system.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except FileExistsError as error:
        raise ConfigError(f"{folder} is not a folder") from error
    except OSError as error:
        raise ConfigError(f"{folder}: cannot create the folder: {error.strerror}") from error
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{folder} belongs to uid {status.st_uid}, this process runs as uid {os.geteuid()}")
    kind = file_system(folder, mounts)
    if kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse.") and kind[5:] in _FUSE_NETWORK):
        raise ConfigError(f"{folder} lies on a network file system ({kind}): choose a folder on a local disk")
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder}: the folder cannot be written")


def file_system(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that holds `folder`, "" when the mount table cannot be read."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    target = folder.resolve()
    best, kind = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        # A later mount on the same point hides the earlier one, hence >=.
        if target.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read or write (SQLite gives its side files the same mode)."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def sync_folder(folder: Path) -> None:
    """Make names created in the folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""A recorded folder tree held in memory: the small files of /sys and /proc found in an archive or folder."""

from __future__ import annotations

from collections.abc import Sequence

#: Content kept of one file, and of one tree, in bytes.
FILE_LIMIT = 1 << 20
TREE_LIMIT = 64 << 20
#: Files kept of one tree.
FILES_LIMIT = 200_000


def tree_name(path: str) -> tuple[str, str] | None:
    """Split a path at its first "sys" or "proc" component: ("bundle/node1", "sys/class/..."), None without one."""
    parts = path.split("/")
    for index, part in enumerate(parts[:-1]):
        if part in ("sys", "proc"):
            return "/".join(parts[:index]), "/".join(parts[index:])
    return None


class MemoryTree:
    """Files by path, in the shape of `collectors.tree.Tree`."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._folders: dict[str, set[str]] = {}
        self._size = 0
        self.full = False

    @property
    def names(self) -> Sequence[str]:
        """Paths of all files, sorted."""
        return sorted(self._files)

    def add(self, path: str, content: bytes) -> None:
        """Keep a file; `full` becomes True when the tree takes no more."""
        if self._size + len(content) > TREE_LIMIT or len(self._files) >= FILES_LIMIT:
            self.full = True
            return
        self._size += len(content)
        self._files[path] = content[:FILE_LIMIT]
        parts = path.split("/")
        for index in range(len(parts)):
            self._folders.setdefault("/".join(parts[:index]), set()).add(parts[index])

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None when it is absent."""
        return self._files.get(path.strip("/"))

    def listdir(self, path: str) -> Sequence[str]:
        """Return the names in a folder, sorted; empty when it is absent."""
        return sorted(self._folders.get(path.strip("/"), ()))

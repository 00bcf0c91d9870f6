"""Times of blocks on demand: what the agent asks of this process, and what is answered.

The agent writes a small file whose name only this process and the agent know, into a folder beside its socket; the
sending thread looks for it twice a second. Nothing else reaches a training process: no socket is opened, no signal
is sent, and a file that is not the agent's own is passed over. Bounded: steps and rows of one request.
"""

import json
import os
import stat
import time
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

if TYPE_CHECKING:
    from flightwatch.collectors.training.probe import Probe

#: Ending of the folder beside the agent's socket; before it stands the socket's path.
FOLDER_ENDING = ".requests"
MOST_STEPS = 100
MOST_ROWS = 50_000
_MOST_BYTES = 4096


class Asked:
    """What is asked of this process.

    Attributes
    ----------
    token: name of this process's file, told to the agent every 10 s.
    """

    def __init__(self, probe: "Probe", socket_path: str) -> None:
        self._probe = probe
        self._socket_path = socket_path
        self._folder = os.path.abspath(socket_path) + FOLDER_ENDING
        self._seen: Optional[Tuple[int, int]] = None
        self._request: Dict[str, Any] = {}
        self._answer: Dict[str, Any] = {}
        self._steps = self._rows = 0
        self._span: Tuple[int, int] = (0, 0)
        self.renew()

    def renew(self) -> None:
        """Forget what was asked, and take a new name: in a forked child the old one is the parent's."""
        self.token = os.urandom(8).hex()
        self._path = os.path.join(self._folder, self.token)
        self._seen, self._span, self._request, self._answer = None, (0, 0), {}, {}

    def covers(self, number: int) -> bool:
        """Say whether times of blocks are asked for in a step. Called on the training thread."""
        first, beyond = self._span
        return first <= number < beyond

    def look(self) -> None:
        """Take a new request, or drop one that was taken back. Called on the sending thread."""
        try:
            found = os.lstat(self._path)
        except OSError:
            if self._seen is not None:
                if self._span != (0, 0):
                    self._request = {}  # dropped half way: asked again (by a restarted agent), it begins anew
                self._seen, self._span = None, (0, 0)
            return
        if self._seen == (found.st_ino, found.st_mtime_ns):
            return
        self._seen = (found.st_ino, found.st_mtime_ns)
        request = self._read()
        if request is None:
            return
        if request["request"] == self._request.get("request"):
            self._tell(self._answer)  # the agent was restarted and does not know it any more
            return
        self._request = request
        self._begin(request)

    def _read(self) -> Optional[Dict[str, Any]]:
        """Return the request when the file is whole and belongs to whom the agent's socket belongs to."""
        try:
            owner = os.lstat(self._socket_path).st_uid
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(handle, "rb") as file:
                known = os.fstat(handle)
                if not stat.S_ISREG(known.st_mode) or known.st_uid != owner:
                    return None
                request = json.loads(file.read(_MOST_BYTES))
            numbers = {name: int(request[name]) for name in ("from", "steps", "rows", "until_ms")}
            if request["v"] != 1 or numbers["until_ms"] < time.time() * 1000:
                return None
            return {"request": str(request["request"]), **numbers}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _begin(self, request: Dict[str, Any]) -> None:
        probe = self._probe
        self._steps = self._rows = 0
        if probe.off or not probe.blocks:
            reason = "its model has no blocks whose times can be taken (a compiled model is seen as a whole)"
            off = "its probe switched itself off after errors"
            self._tell({"state": "failed", "reason": off if probe.off else reason})
            return
        # The running step has begun without, and the training thread goes on while this is decided.
        first = max(request["from"], probe.next_number() + 2)
        self._span = (first, first + min(max(1, request["steps"]), MOST_STEPS))
        self._tell({"state": "armed", "first": first})

    def told(self, number: int, rows: int) -> None:
        """Count the rows of a step that is sent; the last one ends the request. Called on the sending thread."""
        first, beyond = self._span
        if not first <= number < beyond:
            return
        self._steps += rows > 0
        self._rows += rows
        full = self._rows + rows > min(self._request["rows"], MOST_ROWS)
        if number < beyond - 1 and not full:
            return
        self._span = (0, 0)
        reason = "its limit of bytes was reached" if number < beyond - 1 else ""
        self._tell({"state": "done", "first": first, "steps": self._steps, "rows": self._rows, "reason": reason})

    def ends(self) -> None:
        """Answer for good: the process makes no further step. Called when its last steps were sent."""
        if self._span != (0, 0):
            self._span = (0, 0)
            state = "done" if self._rows else "failed"
            self._tell({"state": state, "steps": self._steps, "rows": self._rows, "reason": "the job ended before"})

    def _tell(self, answer: Dict[str, Any]) -> None:
        self._answer = answer
        values = {"ts": time.time_ns() // 1_000_000, "request": self._request["request"]}
        self._probe.wire.put(("asked", {**values, **answer}))

"""Opens torch's worker server in a rank, so that a hung rank can still be asked where it stands.

The server is C++ threads inside torch that answer over a unix socket without Python: flight recorder and stacks
come out even while the interpreter is blocked. The socket, `worker-PID.sock`, lies beside the agent's socket or
in the folder of its profiler and is open to its owner alone. Never torch's debug server, which listens on TCP.

Opened when the job's process group is about to be made: launchers and data-loader workers make none. What torch
does not have, or a folder that cannot be written, leaves a named "not available" and nothing else changed.
"""

import atexit
import ctypes
import os
from typing import Any, List, Optional

from flightwatch.collectors.training.hooks import around
from flightwatch.collectors.training.probe import Probe

#: Folder for sockets beside the agent's, made by its profiler for jobs of every user.
_BESIDE = "profiler"
_FOLDER_NAME = "KINETO_IPC_SOCKET_DIR"
#: A unix socket's path is at most so long.
_LONGEST = 107


class WorkerServer:
    """The server of this process.

    Parameters
    ----------
    socket_path: the agent's socket.
    """

    def __init__(self, probe: Probe, socket_path: str) -> None:
        self._probe = probe
        self._socket_path = socket_path
        self._pid = 0
        self.path = ""

    def install(self, dist: Any) -> None:
        """Open now when the process group is there already, else when it is made."""
        if dist.is_initialized():
            self._probe.guard(self.open)()
            return

        def before(*_args: Any, **_kwargs: Any) -> None:
            self.open()

        def after(_token: Any, _started_ns: int, _ended_ns: int, _result: Any) -> None:
            return

        around(self._probe, dist, "init_process_group", before, after)

    def open(self) -> None:
        """Open the server once per process; says why not where that fails."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        problem = self._open()
        if problem:
            self._probe.event("probe:missing", "info", "not available: worker server for hang evidence: " + problem, {})

    def _open(self) -> str:
        try:
            from torch._C._distributed_c10d import _WorkerServer
        except ImportError:
            return "this torch has none"
        problem = "no folder for its socket"
        for folder in self._folders():
            path = os.path.join(folder, "worker-" + str(os.getpid()) + ".sock")
            if len(os.fsencode(path)) > _LONGEST:
                problem = folder + " is too long a path for a socket"
                continue
            if not os.access(folder, os.W_OK | os.X_OK):
                problem = folder + " is not there or cannot be written"
                continue
            try:
                if os.path.lexists(path):
                    os.unlink(path)  # of a process that had this number before
                server = _WorkerServer(path)
                # Never freed: its destructor joins its thread, which in a forked child does not exist.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
                os.chmod(path, 0o600)
            except (OSError, RuntimeError, TypeError) as error:
                problem = repr(error)[:200]
                continue
            self.path = path
            atexit.register(self._close, os.getpid())
            return ""
        return problem

    def _folders(self) -> List[str]:
        beside = os.path.dirname(os.path.abspath(self._socket_path))
        given: Optional[str] = os.environ.get(_FOLDER_NAME)
        folders = [beside, os.path.join(beside, _BESIDE)]
        return [*folders, given] if given and os.path.isabs(given) else folders

    def _close(self, pid: int) -> None:
        if os.getpid() != pid:
            return  # a forked child has the socket's name and not its threads
        try:
            os.unlink(self.path)
        except OSError:
            return

"""Datagrams of libkineto's on-demand protocol, as its client inside the training process speaks it.

One datagram is `<Q32s` (payload bytes, type padded with NUL) and a payload. `ctxt` announces a process
(gpu, pid, job) and wants an int32 back; `req` asks for a configuration (kind, number of pids, job, then
the pids, its own first) and wants its text back, empty for "nothing". Sizes are those of a 64-bit machine.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from flightwatch.core.errors import BadRecord

#: The largest request a client makes is far below; what is longer is cut by the kernel and refused.
MOST_BYTES = 4096
_HEAD = struct.Struct("<Q32s")
_CONTEXT = struct.Struct("<iiq")
_REQUEST = struct.Struct("<iiq")


@dataclass(frozen=True, slots=True)
class Datagram:
    """What one process says.

    Attributes
    ----------
    kind: "ctxt" (I am here) or "req" (is there something for me?).
    claimed_pid: pid as the process sees itself; never used to identify it.
    """

    kind: str
    claimed_pid: int


def parse(data: bytes) -> Datagram:
    """Read one datagram.

    Raises
    ------
    BadRecord: it is not one of the two kinds, or cut.
    """
    if len(data) < _HEAD.size:
        raise BadRecord(f"a datagram of {len(data)} bytes has no header")
    size, raw = _HEAD.unpack_from(data)
    kind = raw.split(b"\0", 1)[0].decode("ascii", "replace")
    body = data[_HEAD.size :]
    if size != len(body):
        raise BadRecord(f"a datagram says {size} bytes and carries {len(body)}")
    if kind == "ctxt" and len(body) >= _CONTEXT.size:
        return Datagram(kind, _CONTEXT.unpack_from(body)[1])
    if kind == "req" and len(body) >= _REQUEST.size + 4 and _REQUEST.unpack_from(body)[1] >= 1:
        return Datagram(kind, struct.unpack_from("<i", body, _REQUEST.size)[0])
    raise BadRecord(f"a datagram of kind {kind!r} and {len(body)} bytes is not known")


def context_reply(processes: int) -> bytes:
    """Return the answer to `ctxt`: how many processes are known."""
    return _HEAD.pack(4, b"ctxt") + struct.pack("<i", processes)


def config_reply(text: str) -> bytes:
    """Return the answer to `req`: a configuration, or "" for nothing."""
    body = text.encode("ascii")
    return _HEAD.pack(len(body), b"req") + body

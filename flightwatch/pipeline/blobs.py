"""Large files (traces, dumps) as chunks of the blobs lane, and back.

A message is `FB`, the length of the header message (u32, little endian), the header message (an empty
batch of the codec, signed like any other, whose attributes describe the chunk) and the chunk's bytes.
The header names the sha256 of the chunk, so its signature covers the bytes too.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from flightwatch.core.errors import BadRecord
from flightwatch.core.vocabulary import Lane
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.sender import Encode, Sender

CHUNK_BYTES = 512_000
_ENVELOPE = struct.Struct("<2sI")
_MAGIC = b"FB"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a blob.

    Attributes
    ----------
    index: from 0.
    last: True for the final piece, whose header names size and sha256 of the whole.
    total_bytes, total_sha256: of the whole blob; None and "" before the last piece.
    """

    blob_id: str
    kind: str
    index: int
    last: bool
    data: bytes
    total_bytes: int | None
    total_sha256: str
    attributes: Mapping[str, str]


class BlobSender:
    """BlobSink over the blobs lane of a sender.

    Parameters
    ----------
    encode: the sender's encoder.
    """

    def __init__(self, sender: Sender, encode: Encode, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._sender = sender
        self._encode = encode
        self._chunk_bytes = chunk_bytes

    def put(self, blob_id: str, kind: str, data: BinaryIO, attributes: Mapping[str, str]) -> None:
        """Queue one blob on disk, chunk by chunk; memory stays at two chunks.

        Raises
        ------
        Backpressure: the lane has no room. Chunks queued before it are sent; a receiver never sees the last one.
        """
        whole = hashlib.sha256()
        total = index = 0
        piece = data.read(self._chunk_bytes)
        while True:
            following = data.read(self._chunk_bytes) if piece else b""
            whole.update(piece)
            total += len(piece)
            described = {
                **{f"x:{name}": value for name, value in attributes.items()},
                "blob": blob_id,
                "kind": kind,
                "chunk": str(index),
                "sha256": hashlib.sha256(piece).hexdigest(),
            }
            if not following:
                described |= {"last": "1", "total_bytes": str(total), "total_sha256": whole.hexdigest()}
            self._send(piece, described)
            if not following:
                return
            piece, index = following, index + 1

    def _send(self, piece: bytes, described: Mapping[str, str]) -> None:
        def pack(batch: Batch) -> bytes:
            header = self._encode(batch)
            return _ENVELOPE.pack(_MAGIC, len(header)) + header + piece

        self._sender.append_encoded(Lane.BLOBS, pack, described)


def split(message: bytes) -> tuple[bytes, bytes]:
    """Return header message and bytes of one message of the blobs lane.

    Raises
    ------
    BadRecord: not a chunk.
    """
    if len(message) < _ENVELOPE.size:
        raise BadRecord("a message of the blobs lane is too short")
    magic, length = _ENVELOPE.unpack_from(message)
    if magic != _MAGIC or _ENVELOPE.size + length > len(message):
        raise BadRecord("a message of the blobs lane does not hold a chunk")
    return message[_ENVELOPE.size : _ENVELOPE.size + length], message[_ENVELOPE.size + length :]


def chunk_of(header: BatchHeader, data: bytes) -> Chunk:
    """Check a chunk against its decoded (and, where batches are signed, verified) header.

    Raises
    ------
    BadRecord: attributes missing, or the bytes are not those the header names.
    """
    given = header.attributes
    if hashlib.sha256(data).hexdigest() != given.get("sha256"):
        raise BadRecord("a chunk's bytes do not match its sha256")
    try:
        last = given.get("last") == "1"
        return Chunk(
            blob_id=given["blob"],
            kind=given["kind"],
            index=int(given["chunk"]),
            last=last,
            data=data,
            total_bytes=int(given["total_bytes"]) if last else None,
            total_sha256=given["total_sha256"] if last else "",
            attributes={name[2:]: value for name, value in given.items() if name.startswith("x:")},
        )
    except (KeyError, ValueError) as error:
        raise BadRecord(f"a chunk's header lacks {error}") from error

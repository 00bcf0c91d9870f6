"""The wire format of batches: rows to bytes in the agent, bytes to rows and Arrow tables in the pipeline.

This module needs the standard library, zstandard and orjson; `codec.columns` needs numpy and pyarrow.
"""

from flightwatch.pipeline.codec.encode import encode, encode_rows
from flightwatch.pipeline.codec.read import decode
from flightwatch.pipeline.codec.wire import FORMAT_VERSION

__all__ = ["FORMAT_VERSION", "decode", "encode", "encode_rows"]

"""What an error of the engine means for the caller."""

from __future__ import annotations

import re

import pyarrow as pa
from clickhouse_connect.driver.exceptions import ClickHouseError

from flightwatch.core.errors import BadRecord, ConfigError, FlightwatchError, Refused, TransientError

#: What clients raise: the engine's and the network's errors, and a block that is not what its types say.
CLIENT_ERRORS = (ClickHouseError, OSError, pa.ArrowException)
#: The engine looked at the data and refused it: sending the same block again can never help.
_BAD_DATA = {6, 8, 16, 20, 26, 27, 33, 38, 41, 43, 50, 53, 69, 70, 72, 117, 131, 190, 321, 349, 441, 467, 636}
#: The installation is wrong: no user, no grant, no database or table.
_CONFIGURATION = {60, 81, 115, 192, 193, 194, 452, 497, 516, 739}
#: A read may be repeated: network, timeouts, memory, load, disk, replicas.
_TRANSIENT = {
    3, 23, 74, 75, 76, 87, 159, 164, 173, 201, 202, 203, 209, 210, 241, 242, 243, 244, 252, 279, 285, 289, 298, 319,
    394, 425, 439, 473, 499, 535, 677, 735, 1000, 1001, 1002,
}  # fmt: skip


def one_line(error: BaseException) -> str:
    """Return an engine error as one short sentence without stack trace, version and error name."""
    text = " ".join(str(error).split())
    text = text.split("Stack trace", 1)[0].strip().rstrip(",")
    text = text.rsplit("DB::Exception: ", 1)[-1].split(": While executing", 1)[0]
    text = re.sub(r" \([A-Z_]+\)$", "", text)
    return text if len(text) <= 400 else text[:397] + "..."


def engine_code(error: BaseException) -> int | None:
    """Return ClickHouse's error code, None when the error did not come from the engine."""
    code = getattr(error, "code", None)
    return code if isinstance(code, int) else None


def translate(error: Exception, *, inserting: bool) -> FlightwatchError:
    """Turn a client or engine error into one that says what the caller should do.

    Parameters
    ----------
    inserting: True for inserts, where everything that is not certainly about the data or the
        installation is an unknown outcome (repeat the identical block).

    Returns
    -------
    BadRecord (data refused for good), ConfigError (user, grant, schema), TransientError (repeat),
    or, for reads and commands, Refused.
    """
    if isinstance(error, FlightwatchError):
        return error
    code, text = engine_code(error), one_line(error)
    if isinstance(error, pa.ArrowException):
        return BadRecord(f"the rows do not fit their table: {text}")
    if code in (60, 81):
        return ConfigError(f"the store lacks a table ({text}): run `flightwatch store migrate`")
    if code in _CONFIGURATION:
        return ConfigError(f"the store refuses this program or user: {text}")
    # Code 252 is both "too many parts" (merges are behind) and "too many partitions in one block" (the data).
    if inserting and (code in _BAD_DATA or (code == 252 and "partitions for single INSERT" in text)):
        return BadRecord(f"the store rejected the rows: {text}")
    if inserting or code is None or code in _TRANSIENT:
        return TransientError(f"the store did not answer: {text}")
    return Refused(f"the store refused: {text}")

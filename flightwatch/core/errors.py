"""Errors, split by what the caller should do about them."""


class FlightwatchError(Exception):
    """Base of all errors that Flightwatch raises on purpose. Its text is one clear sentence."""


class ConfigError(FlightwatchError):
    """A setting or an argument is wrong: the command ends with exit code 2, naming file and key."""


class TransientError(FlightwatchError):
    """The outcome is unknown or a retry can help: do exactly the same again after a backoff."""


class Refused(FlightwatchError):
    """The operation was understood and not done (exit code 1): it is running already, it is not
    allowed, or nothing is there to answer it."""


class NotFound(Refused):
    """There is nothing of this name or id."""


class BadRecord(FlightwatchError):
    """This record can never be processed: count it, put it aside in the dead letters, go on.

    Parameters
    ----------
    where: position inside its container ("line 12", "row 3", "offset 5120"), may be empty.
    """

    def __init__(self, reason: str, where: str = "") -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason = reason
        self.where = where


class NoData(FlightwatchError):
    """The thing to be measured is not on this machine. Not a failure; the text says what is absent."""


class Backpressure(FlightwatchError):
    """The receiver is full: slow down and offer the same data again."""


class StaleGeneration(FlightwatchError):
    """The caller no longer owns the partition or lease: abandon the work in hand and write nothing."""

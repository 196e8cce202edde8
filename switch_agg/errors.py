"""What can go wrong when a switch adds.

AggregationError
+-- WireError              bytes that are no datagram of the protocol; `.reason` is the counter that counts them
+-- JobError               a job that the aggregator cannot serve as requested
+-- OverflowedError        a sum that left 32 bits: somebody contributed what no worker of the job does
+-- EpochEndedError        the aggregator has begun another epoch: what is under way is lost; `.epoch` is the new one
+-- AggregatorLostError    the aggregator said nothing for too long
+-- SessionEndedError      a session of p4app-switchML's clients is over: another one has begun
+-- UnsupportedError       something is missing on this machine; the message names the fix
"""

from pydantic import ValidationError


class AggregationError(Exception):
    """The root of every error this package raises on purpose."""


class WireError(AggregationError, ValueError):
    """Bytes that are no datagram of the protocol."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class JobError(AggregationError, ValueError):
    """A job that the aggregator cannot serve as requested."""


class OverflowedError(AggregationError):
    """A sum that left 32 bits: what the result has there is clipped."""

    def __init__(self, num_chunks: int) -> None:
        super().__init__(
            f"{num_chunks} chunks came back clipped to 32 bits: contributions of this job cannot add up to that, so "
            "somebody sends others under a worker's address"
        )


class EpochEndedError(AggregationError):
    """The aggregator has begun another epoch; what is under way is lost and must be done again."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the aggregator has begun epoch {epoch}: a worker restarted, or somebody reset the job")
        self.epoch = epoch


class AggregatorLostError(AggregationError, TimeoutError):
    """The aggregator said nothing for too long."""

    def __init__(self, waited_s: float, chunk: int, attempts: int) -> None:
        super().__init__(
            f"no result of chunk {chunk} for {waited_s:.1f} s after {attempts} transmissions: the aggregator, or "
            "another worker of the job, is gone"
        )


class SessionEndedError(AggregationError):
    """A session of p4app-switchML's clients is over: another one has begun, or the aggregator ends."""


class UnsupportedError(AggregationError):
    """Something is missing on this machine; the message names the fix."""


class Interrupted(BaseException):
    """A signal came before an aggregator served: unwinds all that was made. Not an error: nothing that handles errors
    may stop it."""


def explained(error: ValidationError) -> str:
    """What is wrong with each field, in one line: `up.loss: input should be less than or equal to 1 (got 2)`."""
    found = []
    for each in error.errors():
        path, text = ".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")
        if each["type"] == "extra_forbidden":
            text = "there is no such key"
        elif each["type"] == "missing":
            text = "is required"
        elif each["type"] != "value_error":
            text = f"{text[:1].lower()}{text[1:]} (got {each['input']!r})"
        found.append(f"{path}: {text}" if path else text)
    return "; ".join(found)

"""What can go wrong when gradients travel.

TransportError
+-- OptionError            the user requested something that does not exist or cannot be combined
+-- UnsupportedError       something is missing on this machine; the message names the fix
+-- PeerLostError          a peer's connection closed or was reset; `.peer` is its rank
+-- PeerTimeoutError       a peer said nothing within the timeout; `.peer` is its rank
+-- FrameMismatchError     two ranks disagree about what they are exchanging; the message names both sides
"""


class TransportError(Exception):
    """The root of every error this package raises on purpose."""


class OptionError(TransportError, ValueError):
    """The user requested something that does not exist or cannot be combined."""


class UnsupportedError(TransportError):
    """Something is missing on this machine; the message names the fix."""


class PeerLostError(TransportError):
    """A peer's connection closed or was reset."""

    def __init__(self, peer: int, reason: str) -> None:
        super().__init__(f"rank {peer} is lost: {reason}")
        self.peer = peer
        self.reason = reason


class PeerTimeoutError(TransportError, TimeoutError):
    """A peer said nothing within the timeout."""

    def __init__(self, peer: int, waited_s: float, what: str) -> None:
        # torch's own tests look for `timeout`, `closed` or `Timed out` between blanks.
        super().__init__(
            f"waiting for {what} timed out; no progress with rank {peer} for {waited_s:.1f} s when the timeout was over"
        )
        self.peer = peer


class FrameMismatchError(TransportError):
    """Two ranks disagree about what they are exchanging."""

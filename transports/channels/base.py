"""How the bytes get there: a channel opens one endpoint per process group; an endpoint moves framed messages.

An endpoint is driven by exactly one thread (the communicator's). It never blocks outside :meth:`Endpoint.progress`.
Messages between a pair arrive in the order they were posted; every one carries a :class:`Header`, and a receive whose
posted header differs from the one that arrives raises FrameMismatchError naming both sides.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Protocol, get_args

from transports.collectives.base import Buffer, Step
from transports.collectives.schedules.dependencies import Dependencies
from transports.group import Group
from transports.registry import Options, Registry

BUFFERS: Final[tuple[Buffer, ...]] = get_args(Buffer)
"""In the order in which compiled schedules take their addresses."""


class Header(NamedTuple):
    """What a message is; both sides must agree on every field."""

    group: int
    """Identifies the process group (a hash of its name)."""
    sequence: int
    """The number of the collective operation within the group; point to point, of the message within its pair and
    direction."""
    operation: int
    """Index of the operation's name in `transports.channels.framing.OPERATIONS`."""
    dtype: int
    """Index of the element type in `transports.channels.framing.DTYPES`."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    """Elements in this message."""
    phase: int
    """The number of the message within the operation, per peer and direction; point to point, the tag."""
    argument: int = 0
    """The operation's parameters, its reduction and its root, as `transports.channels.framing.argument` puts
    them together. Two ranks that disagree here would exchange the same messages and compute nonsense."""
    total: int = 0
    """Elements of the whole operation, where all members agree about it: what a server knows of an operation is the
    header of its first message."""


Token = int
"""Names a posted send or receive until its completion."""


class Completion(NamedTuple):
    """A posted send has left its buffer (it may be reused), or a posted receive has filled it."""

    token: Token


class ForwardReverse(NamedTuple):
    """Bytes on the wire, Ethernet headers included, with the data and against it (acknowledgements)."""

    forward: int
    reverse: int


@dataclass(kw_only=True, slots=True)
class PeerStatistics:
    """What the connection to one peer has carried since it was opened, as the kernel counts it."""

    payload_bytes_sent: int = 0
    payload_bytes_received: int = 0
    acknowledgement_bytes_sent: int = 0
    """Wire bytes of pure acknowledgements this side sent."""
    retransmitted_bytes: int = 0

    def __add__(self, other: "PeerStatistics") -> "PeerStatistics":
        return PeerStatistics(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


class Departure(NamedTuple):
    """How a member went away."""

    in_order: bool
    """It closed the group, and said so."""
    reason: str


class CompiledSchedule(Protocol):
    """A schedule that an endpoint runs by itself, without the interpreter between its messages."""

    def run(self, sequence: int, deadline_s: float, input: int, output: int, scratch: int) -> float | None:  # noqa: A002
        """All of it, as operation `sequence` of its group, on the BUFFERS at those addresses (0 for one that it does
        not use); returns when its first message completed, if any did. Nothing else may be posted. One that was left in
        the middle, by an exception of a signal's handler, goes on when it is called again with the same sequence, from
        any thread. Raises what :meth:`Endpoint.progress` raises."""


class Endpoint(Protocol):
    """One member's side of a group. Driven by one thread only."""

    def post_send(self, peer: int, header: Header, view: memoryview) -> Token:
        """Queue a message; `view` must stay untouched until the token completes."""

    def post_receive(self, peer: int, header: Header, view: memoryview) -> Token:
        """Expect a message; `view` is filled when the token completes."""

    def skip(self, sequence: int) -> None:
        """Operation `sequence` of the group is one in which this member sends and receives nothing: it has finished it,
        as it says when it leaves. Called by the thread that drives it."""

    def progress(self, deadline_s: float, until_s: float = math.inf) -> Sequence[Completion]:
        """Move bytes until something completes; returns all that has. At `until_s` it returns, perhaps with nothing,
        and no harm is done. Times are on time.monotonic(), and may be infinite.

        Raises PeerLostError when any member of the group is gone, PeerTimeoutError at the deadline,
        FrameMismatchError when sides disagree. After an error the endpoint can only be closed.
        """

    def peek(self, peer: int, deadline_s: float) -> Header | None:
        """The header of the next message from a peer for which no receive is posted; None when the peer has taken its
        leave. The message stays where it is. Raises what :meth:`progress` raises, and PeerLostError where the peer left
        because it had lost another, whom the error names."""

    def compile(
        self, steps: Sequence[Step], order: Dependencies, header: Header, reduction: int
    ) -> CompiledSchedule | None:
        """A schedule made ready to run again and again; None: messages have to be posted one by one. `header` is that
        of every message but for sequence, phase and count, `reduction` an index in
        `transports.channels.framing.REDUCTIONS`."""

    def departure(self, peer: int) -> Departure | None:
        """How a member went away, as far as can be known without reading what it sent before; None while it is there.
        Callable from any thread."""

    def wake(self) -> None:
        """Make a waiting :meth:`progress` return early, perhaps with nothing. Callable from any thread."""

    def let_go(self) -> None:
        """Leave alone, for good, the views of what was posted and has not completed: when this returns, their memory is
        their owners' again. It waits for no peer, as :meth:`close` may. Afterwards the endpoint can only be closed.
        Called by the thread that drives it. Idempotent."""

    def statistics(self) -> dict[int, PeerStatistics]:
        """By peer. Callable from any thread."""

    def congestion(self) -> dict[int, str]:
        """By peer, the congestion control the kernel reports; empty where no kernel controls it."""

    def close(self) -> None:
        """Close every connection; peers notice. Idempotent, callable from any thread.

        A member closes gracefully: its close frame names the last operation that it has finished. Peers that are still
        busy with that one go on, those in a later one lose it (PeerLostError) at once. One that dies without a
        close frame is lost to all.
        """


class Channel(Options):
    """A value on the channel axis."""

    crosses_links: ClassVar[bool] = True
    """Whether members may be on different hosts, or in different processes."""
    header_bytes: ClassVar[int]
    """Of the frame header that goes before each message's payload."""
    countable: ClassVar[bool] = True
    """Whether :meth:`wire_bytes` says all that a message costs, to within a hundredth, however short it is."""
    native_libraries: ClassVar[Sequence[Callable[[], Path]]] = ()
    """What builds the C that its endpoints load, and says where it is: ahead for containers, which have no compiler."""
    counts_itself: ClassVar[bool] = False
    """Whether acknowledgements and what is sent again are the channel's own, reported by :meth:`Endpoint.statistics`,
    and not those of the kernel's TCP, which counts them."""
    shared_threads: ClassVar[frozenset[str]] = frozenset()
    """What the threads are called (proc_pid_comm(5)) that a library has for its whole process, whoever in it used the
    library first: they move this channel's messages, too, and may be there before it is opened."""
    own_timers: ClassVar[bool] = False
    """Whether a library's timers, which nobody can set, take part: time cannot be dilated for them."""

    @property
    def congestion_control(self) -> str | None:
        """The kernel's congestion control to set on the route, or None for channels that are not the kernel's TCP."""
        return None

    @property
    def num_subflows(self) -> int:
        """Of each connection; more than one where the hosts' path managers announce further ports."""
        return 1

    def require(self) -> None:
        """Raises UnsupportedError, with the fix, where the library for it is missing on this machine."""

    def require_kernel(self) -> None:
        """Raises UnsupportedError, with the fix, where this kernel has no support for it: called before a plan is
        shown, too, so that nothing is imported for it."""

    @abstractmethod
    def open(self, group: Group) -> Endpoint:
        """Connect to every other member. Raises PeerTimeoutError when one does not appear in time."""

    @abstractmethod
    def wire_bytes(self, payload_bytes: int, mtu: int) -> ForwardReverse:
        """Bytes on the wire for a long stream of that payload at this MTU (frame headers of ours excluded:
        `HEADER_BYTES` per message is payload here)."""

    @abstractmethod
    def goodput_fraction(self, mtu: int) -> float:
        """Payload bytes per wire byte at full utilization: 1448/1514 for TCP at MTU 1500."""


CHANNELS: Final[Registry[Channel]] = Registry("channel", "transports.channels")

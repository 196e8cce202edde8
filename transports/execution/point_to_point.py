"""Messages between two ranks, matched by tag: the protocol, without I/O, clock or thread.

Between the two members messages arrive in the order in which they were sent; which tensors are sent, and which are
awaited, is in no order that the other side could know. So a short control message goes before each tensor, and a
receive for the next control message is always posted:

    EAGER     the tensor follows at once: it is short, and the receiver keeps it if nobody has requested it yet
    ANNOUNCE  a tensor waits at the sender until a receive for it is posted
    ACCEPT    ... which is: send it now
    DATA      ... and here it follows
    REFUSE    the receive that it was matched with cannot take it
    WITHDRAW  the sender has given up waiting for ACCEPT
    CREDIT    the receiver has handed on so many bytes of eager messages; the sender may send as many more
    CLOSE     this member leaves and sends nothing more

A message goes to the first receive that was posted with its tag, in the order in which messages were sent. A receive
from any source is posted with every pair, and whichever claims it first has it.

As in MPI (MPI 4.1, 3.5) messages of one sender with one tag do not overtake each other, and a message may be shorter
than the buffer that receives it. One that is longer, or of another type, fails the receive and nothing else.
"""

import struct
from collections import defaultdict, deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeVar

from transports.channels.framing import DTYPE_BYTES, DTYPES
from transports.errors import FrameMismatchError, PeerLostError, TransportError

EAGER_BYTES: Final = 64 * 1024
"""Tensors up to this length are sent at once."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Of eager messages that a receiver keeps for a sender; what would be more is announced."""

ItemT = TypeVar("ItemT")

_CONTROL: Final = struct.Struct("<BB6xQqQ")
CONTROL_BYTES: Final = _CONTROL.size


class Kind(IntEnum):
    """Of a control message: see the module."""

    EAGER = 0
    ANNOUNCE = 1
    ACCEPT = 2
    DATA = 3
    REFUSE = 4
    WITHDRAW = 5
    CREDIT = 6
    CLOSE = 7


class Envelope(NamedTuple):
    """What is known of a message without its contents."""

    tag: int
    dtype: int
    """Index in `transports.channels.framing.DTYPES`."""
    num_elements: int

    @property
    def num_bytes(self) -> int:
        """Of its contents."""
        return self.num_elements * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.num_elements} {DTYPES[self.dtype]} ({self.num_bytes} B) with tag {self.tag}"


_NO_ENVELOPE: Final = Envelope(0, 0, 0)


class Control(NamedTuple):
    """A control message; fields that its kind does not need are 0."""

    kind: Kind
    sequence: int = 0
    """The number of the tensor among all that its sender has sent to this peer."""
    envelope: Envelope = _NO_ENVELOPE
    """Of the tensor; in REFUSE of the receive; in CREDIT the bytes are the number of elements."""

    def pack(self) -> bytes:
        """CONTROL_BYTES, little-endian."""
        tag, dtype, num_elements = self.envelope
        return _CONTROL.pack(self.kind, dtype, self.sequence, tag, num_elements)

    @classmethod
    def unpack(cls, data: bytes | bytearray) -> "Control":
        """Raises FrameMismatchError for anything that :meth:`pack` does not make."""
        kind, dtype, sequence, tag, num_elements = _CONTROL.unpack(data)
        if kind not in list(Kind) or dtype >= len(DTYPES):
            raise FrameMismatchError(f"not a control message: {bytes(data).hex()}; another version of the peer?")
        return cls(Kind(kind), sequence, Envelope(tag, dtype, num_elements))


class Send(Protocol):
    """A tensor to be sent."""

    envelope: Envelope


class Receive(Protocol):
    """A place for a tensor: `envelope` says how much fits, of which type and tag."""

    envelope: Envelope

    def claim(self, peer: int) -> bool:
        """Take it for a message of that rank; False when it has one of another, or nobody waits for it any more."""


class Transmit(NamedTuple):
    """Send this control message, and the tensor behind it."""

    control: Control
    tensor: Send | None = None


class Fill(NamedTuple):
    """After this control message a tensor of that envelope comes: into the receive, or to be kept if it is None.
    Tell :meth:`PairProtocol.filled` when it is there."""

    sequence: int
    envelope: Envelope
    receive: Receive | None


class Finish(NamedTuple):
    """The receive has its message, whose bytes are `kept` where they had to be; or has failed, as has a send."""

    operation: Send | Receive
    error: TransportError | None = None
    kept: bytearray | None = None


class Unmatched(NamedTuple):
    """This pair has no message for the receive, and will have none."""

    receive: Receive
    error: TransportError


Effect = Transmit | Fill | Finish | Unmatched


@dataclass(kw_only=True, slots=True, eq=False)
class _Unexpected:
    """A message that came before its receive was posted."""

    sequence: int
    envelope: Envelope
    is_eager: bool
    contents: bytearray | None = None
    """Of an eager one, when they have come."""
    receive: Receive | None = None
    """Posted while they were coming."""
    is_refused: bool = False


Bursts = tuple[tuple[int, ...], ...]
"""Lengths of messages, each without the channel's header; those of one burst leave together."""


def bursts(size_bytes: int) -> tuple[Bursts, Bursts]:
    """What goes with a tensor of that size, and what comes back for it, when the receiver keeps up with its sender."""
    if not size_bytes:
        return ((CONTROL_BYTES,),), ()
    if size_bytes <= EAGER_BYTES:
        return ((CONTROL_BYTES, size_bytes),), ()
    return ((CONTROL_BYTES,), (CONTROL_BYTES, size_bytes)), ((CONTROL_BYTES,),)


class PairProtocol:
    """One member's side of a pair. Every method may add to `effects`, which the driver carries out in their order."""

    def __init__(
        self, rank: int, peer: int, *, eager_bytes: int = EAGER_BYTES, window_bytes: int = WINDOW_BYTES
    ) -> None:
        self._rank = rank
        self._peer = peer
        self._eager_bytes = eager_bytes
        self._window_bytes = window_bytes
        self.effects: Final[deque[Effect]] = deque()
        self._num_sent = 0
        self._announced: dict[int, Send] = {}
        self._credit_bytes = window_bytes
        self._handed_on_bytes = 0
        self._receives: defaultdict[int, deque[Receive]] = defaultdict(deque)
        self._unexpected: defaultdict[int, deque[_Unexpected]] = defaultdict(deque)
        self._coming: dict[int, _Unexpected] = {}
        """Eager messages whose contents are on their way, by number, that go to no receive directly."""
        self._filling: dict[int, Receive] = {}
        self._accepted: dict[int, tuple[Envelope, Receive]] = {}
        self._hears_goodbye = False
        self._ended: TransportError | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the peer has left, or is lost."""
        return self._ended is not None

    @property
    def fills(self) -> bool:
        """Whether something is on its way into a caller's tensor."""
        return bool(self._filling or self._accepted)

    def send(self, tensor: Send) -> None:
        """A tensor is to be sent."""
        if self._ended is not None:
            self.effects.append(Finish(tensor, self._ended))
            return
        self._num_sent += 1
        cost = _cost(tensor.envelope)
        if tensor.envelope.num_bytes <= self._eager_bytes and cost <= self._credit_bytes:
            self._credit_bytes -= cost
            self._transmit(Kind.EAGER, self._num_sent, tensor.envelope, tensor)
        else:
            self._announced[self._num_sent] = tensor
            self._transmit(Kind.ANNOUNCE, self._num_sent, tensor.envelope)

    def receive(self, receive: Receive) -> None:
        """A receive is posted."""
        tag = receive.envelope.tag
        if tag in self._unexpected:
            if receive.claim(self._peer):
                self._give(_pop(self._unexpected, tag), receive)
        elif self._ended is not None:
            self.effects.append(Unmatched(receive, self._ended))
        else:
            self._receives[tag].append(receive)

    def forget(self, receive: Receive) -> None:
        """A receive is over that no message of this pair was matched with."""
        _remove(self._receives, receive.envelope.tag, receive)

    def withdraw(self, tensor: Send) -> bool:
        """Give up sending; False when the tensor is on its way, or has left."""
        number = next((number for number, each in self._announced.items() if each is tensor), None)
        if number is None:
            return False
        del self._announced[number]
        self._transmit(Kind.WITHDRAW, number, tensor.envelope)
        return True

    def leave(self) -> None:
        """Say goodbye."""
        self._transmit(Kind.CLOSE, 0)

    def hear(self, control: Control) -> None:
        """A control message has come. Raises FrameMismatchError for one that makes no sense."""
        kind, number, envelope = control
        if kind is Kind.EAGER:
            self._hear_eager(number, envelope)
        elif kind is Kind.ANNOUNCE:
            message = _Unexpected(sequence=number, envelope=envelope, is_eager=False)
            receive = self._first_receive(envelope.tag)
            if receive is None:
                self._unexpected[envelope.tag].append(message)
            else:
                self._give(message, receive)
        elif kind is Kind.ACCEPT:
            tensor = self._announced.pop(number, None)
            if tensor is not None:  # else it was withdrawn, which the peer is about to hear
                self._transmit(Kind.DATA, number, tensor.envelope, tensor)
        elif kind is Kind.DATA:
            self._hear_data(number)
        elif kind is Kind.REFUSE:
            tensor = self._announced.pop(number, None)
            if tensor is not None:
                self.effects.append(Finish(tensor, self._mismatch(self._rank, tensor.envelope, self._peer, envelope)))
        elif kind is Kind.WITHDRAW:
            self._hear_withdrawal(number, envelope)
        elif kind is Kind.CREDIT:
            self._credit_bytes += envelope.num_elements
        else:
            self._hears_goodbye = True
            self._end_in_order()

    def filled(self, sequence: int, contents: bytearray | None) -> None:
        """The tensor of a :class:`Fill` is there; `contents` where it was to be kept."""
        receive = self._filling.pop(sequence, None)
        if receive is not None:
            self.effects.append(Finish(receive))
        else:
            message = self._coming.pop(sequence)
            message.contents = contents
            if message.receive is not None and not message.is_refused:
                self.effects.append(Finish(message.receive, kept=contents))
        self._end_in_order()

    def end(self, error: TransportError) -> None:
        """Nothing more will come: the peer has left, or is lost. What has come whole can still be received."""
        if self._ended is not None:
            return
        self._ended = error
        for tensor in self._announced.values():
            self.effects.append(Finish(tensor, error))
        torn = [message.receive for message in self._coming.values() if message.receive and not message.is_refused]
        for receive in (*self._filling.values(), *(receive for _, receive in self._accepted.values()), *torn):
            self.effects.append(Finish(receive, error))
        for queue in self._receives.values():
            self.effects.extend(Unmatched(receive, error) for receive in queue)
        for table in (self._announced, self._filling, self._accepted, self._coming, self._receives):
            table.clear()
        for tag, messages in list(self._unexpected.items()):
            for message in [each for each in messages if each.contents is None]:
                _remove(self._unexpected, tag, message)

    def _end_in_order(self) -> None:
        """After a goodbye, which may overtake tensors where a channel has several connections."""
        if self._hears_goodbye and not self._filling and not self._coming:
            self.end(PeerLostError(self._peer, "it closed the group"))

    def _hear_eager(self, number: int, envelope: Envelope) -> None:
        message = _Unexpected(sequence=number, envelope=envelope, is_eager=True)
        receive = self._first_receive(envelope.tag)
        if receive is None:
            self._unexpected[envelope.tag].append(message)
        elif self._fits(message, receive):
            self._hand_on(envelope)
            if not envelope.num_bytes:
                self.effects.append(Finish(receive))
            else:
                self._filling[number] = receive
                self.effects.append(Fill(number, envelope, receive))
            return
        if not envelope.num_bytes:
            message.contents = bytearray()
        else:
            self._coming[number] = message
            self.effects.append(Fill(number, envelope, None))

    def _hear_data(self, number: int) -> None:
        if number not in self._accepted:
            raise FrameMismatchError(f"rank {self._peer} sends message #{number}, which was not requested")
        envelope, receive = self._accepted.pop(number)
        if not envelope.num_bytes:
            self.effects.append(Finish(receive))
            return
        self._filling[number] = receive
        self.effects.append(Fill(number, envelope, receive))

    def _hear_withdrawal(self, number: int, envelope: Envelope) -> None:
        if number in self._accepted:
            _, receive = self._accepted.pop(number)
            self.effects.append(
                Finish(receive, TransportError(f"rank {self._peer} gave up sending {envelope}: it timed out"))
            )
        for message in self._unexpected.get(envelope.tag, ()):
            if message.sequence == number:
                _remove(self._unexpected, envelope.tag, message)
                break

    def _first_receive(self, tag: int) -> Receive | None:
        """The first that is still free, claimed."""
        while tag in self._receives:
            receive = _pop(self._receives, tag)
            if receive.claim(self._peer):
                return receive
        return None

    def _give(self, message: _Unexpected, receive: Receive) -> None:
        """A message that has been announced, or came before, to a receive that has been claimed for it."""
        if not self._fits(message, receive):
            return
        if not message.is_eager:
            self._accepted[message.sequence] = message.envelope, receive
            self._transmit(Kind.ACCEPT, message.sequence)
            return
        self._hand_on(message.envelope)
        message.receive = receive
        if message.contents is not None:
            self.effects.append(Finish(receive, kept=message.contents))

    def _fits(self, message: _Unexpected, receive: Receive) -> bool:
        """If not, the receive fails, and the sender hears of it if it still has the tensor."""
        sent, expected = message.envelope, receive.envelope
        if sent.dtype == expected.dtype and sent.num_elements <= expected.num_elements:
            return True
        self.effects.append(Finish(receive, self._mismatch(self._peer, sent, self._rank, expected)))
        if message.is_eager:
            self._hand_on(sent)
            message.is_refused, message.receive = True, receive
        else:
            self._transmit(Kind.REFUSE, message.sequence, expected)
        return False

    @staticmethod
    def _mismatch(sender: int, sent: Envelope, receiver: int, expected: Envelope) -> FrameMismatchError:
        return FrameMismatchError(f"rank {sender} sends {sent}; rank {receiver} has room for {expected}")

    def _hand_on(self, envelope: Envelope) -> None:
        """An eager message needs no memory of ours any more."""
        self._handed_on_bytes += _cost(envelope)
        if self._handed_on_bytes >= self._window_bytes // 2:
            self._transmit(Kind.CREDIT, 0, Envelope(0, 0, self._handed_on_bytes))
            self._handed_on_bytes = 0

    def _transmit(
        self, kind: Kind, sequence: int, envelope: Envelope = _NO_ENVELOPE, tensor: Send | None = None
    ) -> None:
        self.effects.append(Transmit(Control(kind, sequence, envelope), tensor))


def _pop(queues: dict[int, deque[ItemT]], tag: int) -> ItemT:
    """The first with that tag, of which there is one. Tags may never come again, so that no empty queue stays."""
    item = queues[tag].popleft()
    if not queues[tag]:
        del queues[tag]
    return item


def _remove(queues: dict[int, deque[ItemT]], tag: int, item: ItemT) -> None:
    """That one, if it is there."""
    if item in queues.get(tag, ()):
        queues[tag].remove(item)
        if not queues[tag]:
            del queues[tag]


def _cost(envelope: Envelope) -> int:
    """What an eager message counts for in the window: also an empty one must be remembered."""
    return envelope.num_bytes + CONTROL_BYTES

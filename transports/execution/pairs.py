"""Point-to-point messages of one member: a connection, and a thread, for each peer with which there are any.

They have nothing to do with collectives: neither waits for the other. The connection of a pair is an endpoint of the
group's channel with two members. It is opened when both have their first message for each other, since members only
learn of a wish through the store; until then nothing is sent, and a send waits, as it may always wait for its receive.
What is said on it decides `transports.execution.point_to_point`.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import torch

from transports.channels.base import Channel, Departure, Endpoint, Header, PeerStatistics, Token
from transports.channels.framing import DTYPES, POINT_TO_POINT, group_id
from transports.errors import PeerLostError, PeerTimeoutError, TransportError
from transports.execution.point_to_point import (
    CONTROL_BYTES,
    Control,
    Effect,
    Envelope,
    Fill,
    Finish,
    Kind,
    PairProtocol,
    Transmit,
    Unmatched,
)
from transports.execution.tensors import flat, nothing, raw, writing_mode
from transports.group import Group, Store

LINGER_S: Final = 30.0
"""How long a member that leaves waits for a peer to say goodbye, too, if its timeout is not shorter: what is on its way
must not be cut off, by a link that is slow or a machine that is busy. A peer that hangs is waited for as long."""
HURRIED_LINGER_S: Final = 1.0
"""The same after an error of the group."""
_POLL_S: Final = (1e-3, 50e-3)
"""How often the store is polled, at first and later, whether a peer for which there are messages has come..."""
_IDLE_POLL_S: Final = 0.25
"""...and one for which there are none any more."""
_GRACE_S: Final = 1.0
"""So long after a peer has gone away its connection may still open: it may have sent something and left."""
_OPEN_S: Final = 10.0
"""At least so long a connection may take to open, however short the time that is left for the first message."""
_JOIN_S: Final = 4.0
"""How long close() waits for a thread beyond the time that it lingers."""
_UINT8: Final = DTYPES.index("uint8")


class Message:
    """One send, or one receive, from when it is posted to when it is over."""

    def __init__(
        self,
        kind: Literal["send", "receive"],
        tensor: torch.Tensor,
        peer: int | None,
        *,
        tag: int,
        dtype: int,
        timeout_s: float,
        finish: Callable[["Message", BaseException | None], None],
    ) -> None:
        """`peer` None: receive from any; `dtype` is an index in DTYPES. `finish` is called once, on whatever thread
        ends it."""
        self.kind: Final = kind
        self.envelope = Envelope(tag, dtype, tensor.numel())
        self.peer = peer
        self.from_any: Final = peer is None
        self.posted_s: Final = time.monotonic()
        self.started_s = self.posted_s
        self.deadline_s: Final = self.posted_s + timeout_s
        self.num_offers = 1
        """Pairs that may still have a message for it."""
        self.over = False
        self._finish = finish
        self._tensor: torch.Tensor | None = tensor
        self._values: torch.Tensor | None = None
        self._restore: Callable[[], None] = nothing
        self._mode: Final = writing_mode()
        self._lock = threading.Lock()
        self._is_claimed = False

    def claim(self, peer: int) -> bool:
        """See :class:`transports.execution.point_to_point.Receive`."""
        with self._lock:
            if self._is_claimed:
                return False
            self._is_claimed = True
        self.peer = peer
        return True

    def refuse(self, error: TransportError, *, peer_has_left: bool) -> None:
        """A pair has no message for it. If that peer has left in good order another may have one."""
        with self._lock:
            self.num_offers -= 1
            if self._is_claimed or (peer_has_left and self.num_offers):
                return
            self._is_claimed = True
        self.finish(error)

    def view(self) -> memoryview:
        """The bytes of the tensor, or of a copy of it where it does not lie in one piece."""
        assert self._tensor is not None, "it is not over"
        self.started_s = time.monotonic()
        self._values, self._restore = flat(self._tensor)
        return raw(self._values)

    def finish(self, error: BaseException | None) -> None:
        """It is over. Idempotent."""
        if self.over:
            return
        self.over = True
        if error is None and self.kind == "receive":
            with self._mode():
                self._restore()
        self._tensor, self._values, self._restore = None, None, nothing
        self._finish(self, error)

    def lateness(self, peer: int) -> TransportError:
        """The error for one that has waited too long, for that peer among others."""
        waited_s = time.monotonic() - self.posted_s
        if self.from_any:
            return TransportError(f"the receive of {self.envelope} from any rank timed out after {waited_s:.1f} s")
        return PeerTimeoutError(peer, waited_s, f"the {self.kind} of {self.envelope}")


class PointToPoint:
    """All pairs of one member of a group."""

    def __init__(self, channel: Channel, group: Group, departure: Callable[[int], Departure | None]) -> None:
        """`departure` says how a member went away: see :meth:`transports.channels.base.Endpoint.departure`."""
        self._channel = channel
        self._group = group
        self._departure = departure
        self._pairs: dict[int, Pair] = {}
        self._lock = threading.Lock()
        self._closed: TransportError | None = None

    def post(self, message: Message) -> None:
        """To, or from, its peer; or from whichever has something for it first."""
        ranks = range(self._group.size)
        peers = [rank for rank in ranks if rank != self._group.rank] if message.peer is None else [message.peer]
        message.num_offers = len(peers)
        # They connect, and a signal's handler may close the group meanwhile, so not with the lock held.
        stores = {peer: _own(self._group.store) for peer in peers if peer not in self._pairs}
        with self._lock:
            error = self._closed
            pairs = [] if error is not None else [self._pair(peer, stores) for peer in peers]
        if error is not None:
            message.finish(error)
        for pair in pairs:
            pair.post(message)

    def statistics(self) -> dict[int, PeerStatistics]:
        """What the connection to each peer has carried, for those that have one."""
        with self._lock:
            pairs = dict(self._pairs)
        return {peer: found for peer, pair in pairs.items() if (found := pair.statistics()) is not None}

    def close(self, error: TransportError, *, in_order: bool) -> None:
        """What is under way fails with that error, and so does what is posted from now on. Not `in_order`: the group
        has failed. Idempotent."""
        with self._lock:
            self._closed = self._closed or error
            pairs = list(self._pairs.values())
        for pair in pairs:
            pair.begin_closing(error, in_order=in_order)
        for pair in pairs:
            pair.join()

    def _pair(self, peer: int, stores: Mapping[int, Store]) -> "Pair":
        pair = self._pairs.get(peer)
        if pair is None:
            group = replace(self._group, store=stores[peer])
            pair = self._pairs[peer] = Pair(self._channel, group, peer, partial(self._departure, peer))
        return pair


def _own(store: Store) -> Store:
    """The same store over a connection of its own, where it is one of torch's: those let one caller at a time wait on
    each. The script may be waiting for what a message will bring about, and a pair for a peer that waits for what
    another pair will."""
    clone: Callable[[], Store] | None = getattr(store, "clone", None)
    return store if clone is None else clone()


def _close_opened(opened: "Future[Endpoint]") -> None:
    """One that nobody wants any more."""
    if opened.exception() is None:
        opened.result().close()


class Pair:
    """What one member exchanges with one peer, and the thread that does it."""

    def __init__(self, channel: Channel, group: Group, peer: int, departure: Callable[[], Departure | None]) -> None:
        low, high = sorted((group.rank, peer))
        self._channel = channel
        self._peer = peer
        self._departure = departure
        self._group = replace(
            group, name=f"{group.name}/p2p/{low}-{high}", rank=int(group.rank == high), size=2, racks=()
        )
        self._id = group_id(self._group.name)
        self._other = 1 - self._group.rank
        self._protocol = PairProtocol(group.rank, peer)
        self._peer_has_left = False
        self._changed = threading.Condition()
        self._posted: deque[Message] = deque()
        self._is_waiting = False
        self._closing: TransportError | None = None
        self._linger_s = min(group.timeout_s, LINGER_S)
        self._endpoint: Endpoint | None = None
        self._over = False
        self._error: TransportError | None = None
        """Why, when it is."""
        self._pending: deque[Message] = deque()
        """In the order of their deadlines, those that are over included until their turn comes."""
        self._tokens: dict[Token, Callable[[], None]] = {}
        self._num_sends = 0
        """Of `_tokens`, those of what is sent."""
        self._leaving: set[Message] = set()
        """Sends whose tensors are being sent."""
        self._num_said = self._num_heard = 0
        """Control messages."""
        self._control = bytearray(CONTROL_BYTES)
        self._thread = threading.Thread(
            target=self._run, name=f"point to point with {peer} of {group.name}", daemon=True
        )
        self._thread.start()

    def post(self, message: Message) -> None:
        """Hand over a message; callable from any thread."""
        with self._changed:
            if self._over:
                self._begin(message)  # what the peer sent before it left can still be received
                self._execute()
                return
            self._posted.append(message)
            if self._is_waiting:
                self._is_waiting = False
                self._wake()

    def begin_closing(self, error: TransportError, *, in_order: bool) -> None:
        """Fail what is under way with that error, and leave; callable from any thread."""
        with self._changed:
            if not in_order:
                self._linger_s = HURRIED_LINGER_S
            self._closing = self._closing or error
            if self._endpoint is None:  # the thread may be busy opening it, and for long
                while self._posted:
                    self._give_up(self._posted.popleft(), error)
            self._wake()

    def join(self) -> None:
        """Return when the connection is closed."""
        if threading.current_thread() is not self._thread:
            self._thread.join(self._linger_s + _JOIN_S)

    def statistics(self) -> PeerStatistics | None:
        """Of its connection, once it has one."""
        endpoint = self._endpoint
        return None if endpoint is None else endpoint.statistics()[self._other]

    def _wake(self) -> None:
        self._changed.notify()
        if self._endpoint is not None:
            self._endpoint.wake()

    # What follows is the thread's.

    def _run(self) -> None:
        error: TransportError | None = None
        try:
            if self._meet():
                self._exchange()
        except TransportError as failure:
            error = self._of_group(failure)
            self._peer_has_left = self._peer_has_left or self._has_left_in_order(failure)
        except Exception as failure:  # noqa: BLE001 (it is raised where the messages are waited for)
            error = TransportError(f"point to point with rank {self._peer}: {type(failure).__name__}: {failure}")
        if self._endpoint is not None and (self._protocol.fills or self._leaving):
            self._endpoint.let_go()  # of tensors that are their owners' again when we have reported it
        with self._changed:
            self._over = True
            self._error = error or self._closing or PeerLostError(self._peer, "it closed the group")
            self._protocol.end(self._error)
            self._take_posted()
            self._execute()
            for message in self._leaving:
                message.finish(self._error)
        if self._endpoint is not None:
            self._endpoint.close()

    def _meet(self) -> bool:
        """Open the connection when the peer wants one as well; False when the group is closed before."""
        store, name = self._group.store, self._group.name
        poll_s, most_s = _POLL_S
        try:
            store.set(f"{name}/{self._group.rank}/wanted", "1")
            while not store.check([f"{name}/{self._other}/wanted"]):
                with self._changed:
                    self._expire_posted()
                    if self._closing is None:
                        self._is_waiting = True
                        self._changed.wait(poll_s if self._posted else _IDLE_POLL_S)
                        self._is_waiting = False
                    if self._closing is not None:
                        return False
                self._require_present()
                poll_s = min(1.5 * poll_s, most_s)
        except RuntimeError as error:  # what torch's stores raise
            raise TransportError(f"point to point with rank {self._peer}: the store: {error}") from error
        with self._changed:
            left_s = self._posted[0].deadline_s - time.monotonic() if self._posted else self._group.timeout_s
        timeout_s = max(left_s, min(_OPEN_S, self._group.timeout_s))
        self._endpoint = self._open(timeout_s)
        return self._endpoint is not None

    def _open(self, timeout_s: float) -> Endpoint | None:
        """The connection; None when the group is closed before. Both members are about to open it, and opening cannot
        be disturbed: if the peer goes away it is left to itself."""
        opened: Future[Endpoint] = Future()

        def call() -> None:
            try:
                opened.set_result(self._channel.open(replace(self._group, timeout_s=timeout_s)))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                opened.set_exception(error)

        threading.Thread(target=call, name=f"opens {self._thread.name}", daemon=True).start()
        gone_s: float | None = None
        try:
            while True:
                with suppress(FutureTimeoutError):
                    return opened.result(_POLL_S[1])
                if self._closing is not None:
                    return None
                if gone_s is None and self._departure() is not None:
                    gone_s = time.monotonic()
                if gone_s is not None and time.monotonic() - gone_s > _GRACE_S:
                    self._require_present()
        finally:
            if not opened.done():
                opened.add_done_callback(_close_opened)

    def _require_present(self) -> None:
        """Raises PeerLostError when the peer has gone away."""
        departure = self._departure()
        if departure is not None:
            self._peer_has_left = departure.in_order
            raise PeerLostError(self._peer, departure.reason)

    def _expire_posted(self) -> None:
        """What has waited too long for the connection fails."""
        now_s = time.monotonic()
        while self._posted and (self._posted[0].over or self._posted[0].deadline_s <= now_s):
            self._give_up(self._posted.popleft())

    def _give_up(self, message: Message, error: TransportError | None = None) -> None:
        """One that is late, or has that error, and that no other pair has taken."""
        if not message.over and (message.kind == "send" or message.claim(self._peer)):
            message.finish(error or message.lateness(self._peer))

    def _exchange(self) -> None:
        """Until the peer has left, or we have."""
        assert self._endpoint is not None, "it is open"
        self._expect_control()
        has_left, until_s = False, math.inf
        while not (self._protocol.has_ended and has_left and not self._num_sends):
            with self._changed:
                closing = self._closing
                if not has_left and (closing is not None or self._protocol.has_ended):
                    if self._protocol.fills or self._leaving:
                        return  # into memory that is its owner's again when we have reported it
                    if closing is not None:
                        self._fail_pending(closing)
                    self._protocol.leave()
                    has_left, until_s = True, time.monotonic() + self._linger_s
                if not has_left:
                    self._take_posted()
                    self._expire()
                self._execute()
                self._is_waiting = not has_left
            for (token,) in self._endpoint.progress(math.inf, min(until_s, self._next_deadline_s())):
                self._tokens.pop(token)()
            self._is_waiting = False
            if time.monotonic() >= until_s:
                return

    def _take_posted(self) -> None:
        while self._posted:
            message = self._posted.popleft()
            self._pending.append(message)
            self._begin(message)

    def _begin(self, message: Message) -> None:
        if message.kind == "send":
            self._protocol.send(message)
        else:
            self._protocol.receive(message)

    def _next_deadline_s(self) -> float:
        while self._pending and self._pending[0].over:
            self._pending.popleft()
        return self._pending[0].deadline_s if self._pending else math.inf

    def _expire(self) -> None:
        """What has not been matched in time fails. Raises PeerTimeoutError for what has, and does not move: then
        nothing that is behind it can move either."""
        now_s = time.monotonic()
        while self._next_deadline_s() <= now_s:
            message = self._pending.popleft()
            if message.kind == "send":
                is_matched = not self._protocol.withdraw(message)
            else:
                is_matched = not message.claim(self._peer) and message.peer == self._peer
                if not is_matched:
                    self._protocol.forget(message)
            if is_matched:
                raise message.lateness(self._peer)
            if not message.over and message.peer == self._peer:
                message.finish(message.lateness(self._peer))

    def _fail_pending(self, error: TransportError) -> None:
        """All that no message has been matched with, and nothing of which has left."""
        for message in self._pending:
            if not message.over:
                if message.kind == "send":
                    self._protocol.withdraw(message)
                else:
                    self._protocol.forget(message)
                self._give_up(message, error)
        while self._posted:
            self._give_up(self._posted.popleft(), error)

    def _execute(self) -> None:
        effects = self._protocol.effects
        while effects:
            self._execute_one(effects.popleft())

    def _execute_one(self, effect: Effect) -> None:
        if isinstance(effect, Transmit):
            self._transmit(effect)
        elif isinstance(effect, Fill) and not self._over:
            self._fill(effect)
        elif isinstance(effect, Finish):
            message = effect.operation
            assert isinstance(message, Message), "the protocol hands back what it was given"
            if effect.kept is not None and effect.error is None:
                message.view()[: len(effect.kept)] = effect.kept
            message.finish(effect.error)
        elif isinstance(effect, Unmatched):
            assert isinstance(effect.receive, Message), "the protocol hands back what it was given"
            effect.receive.refuse(effect.error, peer_has_left=self._peer_has_left)

    def _transmit(self, effect: Transmit) -> None:
        message, control = effect.tensor, effect.control
        assert message is None or isinstance(message, Message), "the protocol hands back what it was given"
        if self._endpoint is None or self._over:
            if message is not None:
                message.finish(self._error)
            return
        self._num_said += 1
        header = Header(self._id, self._num_said, POINT_TO_POINT, _UINT8, CONTROL_BYTES, 0)
        token = self._endpoint.post_send(self._other, header, memoryview(control.pack()))
        self._num_sends += 1
        self._tokens[token] = self._sent
        if message is None:
            return
        self._leaving.add(message)
        if message.envelope.num_bytes:
            header = self._header(control.sequence, message.envelope)
            token = self._endpoint.post_send(self._other, header, message.view())
            self._num_sends += 1
        self._tokens[token] = lambda: self._sent(message)

    def _sent(self, message: Message | None = None) -> None:
        self._num_sends -= 1
        if message is not None:
            self._leaving.discard(message)
            message.finish(None)

    def _fill(self, effect: Fill) -> None:
        assert self._endpoint is not None, "something has come"
        number, envelope, message = effect
        kept: bytearray | None = None
        if message is None:
            kept = bytearray(envelope.num_bytes)
            view = memoryview(kept)
        else:
            assert isinstance(message, Message), "the protocol hands back what it was given"
            view = message.view()[: envelope.num_bytes]
        token = self._endpoint.post_receive(self._other, self._header(number, envelope), view)

        def filled() -> None:
            with self._changed:
                self._protocol.filled(number, kept)
                self._execute()

        self._tokens[token] = filled

    def _expect_control(self) -> None:
        assert self._endpoint is not None, "it is open"
        self._num_heard += 1
        header = Header(self._id, self._num_heard, POINT_TO_POINT, _UINT8, CONTROL_BYTES, 0)
        token = self._endpoint.post_receive(self._other, header, memoryview(self._control))
        self._tokens[token] = self._heard

    def _heard(self) -> None:
        """A control message has come."""
        control = Control.unpack(self._control)
        self._peer_has_left = control.kind is Kind.CLOSE
        with self._changed:
            self._protocol.hear(control)
            self._execute()
        if not self._peer_has_left:
            self._expect_control()

    def _header(self, number: int, envelope: Envelope) -> Header:
        tag, dtype, num_elements = envelope
        return Header(self._id, number, POINT_TO_POINT, dtype, num_elements, tag)

    def _has_left_in_order(self, error: TransportError) -> bool:
        """Whether the peer closed the group, although it did not say so in here: one that is in the middle of a
        receive does not."""
        if not isinstance(error, PeerLostError):
            return False
        known = [self._departure(), None if self._endpoint is None else self._endpoint.departure(self._other)]
        return any(departure is not None and departure.in_order for departure in known)

    def _of_group(self, error: TransportError) -> TransportError:
        """An error of the connection, with the group's rank instead of the pair's."""
        if isinstance(error, PeerLostError):
            return PeerLostError(self._peer, error.reason)
        if isinstance(error, PeerTimeoutError) and error.peer != self._peer:
            return PeerTimeoutError(self._peer, self._group.timeout_s, "its connection for point-to-point messages")
        return error

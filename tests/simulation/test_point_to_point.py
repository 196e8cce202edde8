"""Two members of a pair whose bytes travel in order, and otherwise at any time: whatever is sent is received once, by
the first receive with its tag, and nothing is left waiting that has a partner."""

import os
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transports.channels.framing import DTYPES
from transports.errors import FrameMismatchError, PeerLostError, TransportError
from transports.execution.point_to_point import Control, Envelope, Fill, Finish, Kind, PairProtocol, Transmit, Unmatched

NUM_EXAMPLES = int(os.environ.get("PAIR_EXAMPLES", "300"))
"""Of each test. Before and after a change of the protocol: PAIR_EXAMPLES=20000."""
pytestmark = pytest.mark.timeout(120 + NUM_EXAMPLES)
UINT8 = DTYPES.index("uint8")
EAGER_BYTES, WINDOW_BYTES = 100, 400
SIZES = (0, 1, 60, 100, 101, 300)


@dataclass(eq=False)
class Tensor:
    """A send or a receive, and what became of it."""

    envelope: Envelope
    number: int
    """Among those of its side."""
    claimed_by: int | None = None
    contents: Any = None
    outcome: Any = None
    """`done`, an error, or None while it is under way."""

    def claim(self, peer: int) -> bool:
        if self.claimed_by is not None:
            return False
        self.claimed_by = peer
        return True


@dataclass(eq=False)
class Member:
    """A driver: frames arrive one at a time, and a tensor's frame goes where the protocol said."""

    rank: int
    protocol: PairProtocol
    out: deque[Any] = field(default_factory=deque)
    """Frames on their way to the peer: packed control messages and tensors."""
    expected: deque[Fill] = field(default_factory=deque)
    kept: dict[int, Any] = field(default_factory=dict)
    arriving: list[tuple[Fill, Any]] = field(default_factory=list)
    """Tensors that are still coming while later control messages have come, by another connection."""

    def execute(self) -> None:
        while self.protocol.effects:
            effect = self.protocol.effects.popleft()
            if isinstance(effect, Transmit):
                self.out.append(effect.control.pack())
                if effect.tensor is not None:
                    assert isinstance(effect.tensor, Tensor)
                    assert effect.tensor.outcome is None, "a tensor is sent that is its owner's again"
                    if effect.tensor.envelope.num_bytes:
                        self.out.append(effect.tensor)
                    self.finish(effect.tensor, "done")
            elif isinstance(effect, Fill):
                self.expected.append(effect)
            elif isinstance(effect, Finish):
                operation = effect.operation
                assert isinstance(operation, Tensor)
                if effect.kept:
                    operation.contents = self.kept[id(effect.kept)][1]
                self.finish(operation, effect.error or "done")
            elif isinstance(effect, Unmatched):
                assert isinstance(effect.receive, Tensor)
                if effect.receive.claim(-1):
                    self.finish(effect.receive, effect.error)

    @staticmethod
    def finish(tensor: Tensor, outcome: Any) -> None:
        assert tensor.outcome is None, "it ends twice"
        tensor.outcome = outcome

    def arrive(self, frame: Any) -> None:
        if self.expected:
            fill = self.expected.popleft()
            assert isinstance(frame, Tensor), "a tensor was to come"
            assert frame.envelope == fill.envelope
            self.arriving.append((fill, frame))
        else:
            self.protocol.hear(Control.unpack(frame))
        self.execute()

    def fill(self, index: int) -> None:
        if not self.arriving:
            return
        (sequence, _, receive), frame = self.arriving.pop(index % len(self.arriving))
        contents = None
        if receive is None:
            contents = bytearray(1)
            self.kept[id(contents)] = contents, frame
        else:
            assert isinstance(receive, Tensor)
            assert receive.outcome is None, "memory is written to that is its owner's again"
            receive.contents = frame
        self.protocol.filled(sequence, contents)
        self.execute()


class World:
    """Both members, and what was posted."""

    def __init__(self) -> None:
        self.members = [
            Member(rank, PairProtocol(rank, 1 - rank, eager_bytes=EAGER_BYTES, window_bytes=WINDOW_BYTES))
            for rank in range(2)
        ]
        self.sends: list[list[Tensor]] = [[], []]
        self.receives: list[list[Tensor]] = [[], []]

    def post(self, rank: int, kind: str, tag: int, num_bytes: int, dtype: int = UINT8) -> None:
        posted = (self.sends if kind == "send" else self.receives)[rank]
        tensor = Tensor(Envelope(tag, dtype, num_bytes), len(posted))
        posted.append(tensor)
        protocol = self.members[rank].protocol
        (protocol.send if kind == "send" else protocol.receive)(tensor)
        self.members[rank].execute()

    def deliver(self, receiver: int) -> bool:
        frames = self.members[1 - receiver].out
        if frames:
            self.members[receiver].arrive(frames.popleft())
        return bool(frames)

    def act(self, action: str, *arguments: Any) -> None:
        if action == "post":
            self.post(*arguments)
        elif action == "deliver":
            self.deliver(*arguments)
        else:
            rank, index = arguments
            self.members[rank].fill(index)

    def settle(self) -> None:
        while any(member.out or member.arriving for member in self.members):
            for rank in range(2):
                self.deliver(rank)
                self.members[rank].fill(0)

    def by_tag(self, tensors: list[Tensor]) -> dict[int, list[Tensor]]:
        found = defaultdict(list)
        for tensor in tensors:
            found[tensor.envelope.tag].append(tensor)
        return found


posts = st.tuples(
    st.just("post"), st.integers(0, 1), st.sampled_from(["send", "receive"]), st.integers(0, 2), st.sampled_from(SIZES)
)
deliveries = st.tuples(st.just("deliver"), st.integers(0, 1))
fills = st.tuples(st.just("fill"), st.integers(0, 1), st.integers(0, 3))
programs = st.lists(posts | deliveries | fills, max_size=60)


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(programs)
def test_the_nth_send_with_a_tag_goes_to_the_nth_receive_with_it(program: list[Any]) -> None:
    world = World()
    for action, *arguments in program:
        world.act(action, *arguments)
    world.settle()
    for receiver in range(2):
        sends, receives = world.by_tag(world.sends[1 - receiver]), world.by_tag(world.receives[receiver])
        for tag in range(3):
            pairs = list(zip(sends[tag], receives[tag], strict=False))
            for sent, received in pairs:
                if sent.envelope.num_elements > received.envelope.num_elements:
                    assert isinstance(received.outcome, FrameMismatchError)
                    is_reported = isinstance(sent.outcome, FrameMismatchError)
                    assert is_reported or (sent.outcome == "done" and sent.envelope.num_bytes <= EAGER_BYTES)
                    continue
                assert (sent.outcome, received.outcome) == ("done", "done")
                if sent.envelope.num_bytes:
                    assert received.contents is sent
            for late in receives[tag][len(pairs) :]:
                assert late.outcome is None
            for early in sends[tag][len(pairs) :]:
                assert early.outcome is None or early.envelope.num_bytes <= EAGER_BYTES


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(programs)
def test_what_nobody_requested_never_exceeds_the_window(program: list[Any]) -> None:
    world = World()
    for action, *arguments in program:
        world.act(action, *arguments)
        for member in world.members:
            kept = [message for queue in member.protocol._unexpected.values() for message in queue if message.is_eager]
            assert sum(message.envelope.num_bytes for message in kept) <= WINDOW_BYTES


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(programs, st.integers(0, 1), st.booleans())
def test_when_a_member_leaves_everything_ends(program: list[Any], leaver: int, in_order: bool) -> None:
    world = World()
    for action, *arguments in program:
        world.act(action, *arguments)
    staying = world.members[1 - leaver]
    if in_order:
        world.members[leaver].protocol.leave()
        world.members[leaver].execute()
        while world.members[leaver].out:
            world.deliver(1 - leaver)
        assert staying.protocol.has_ended != bool(staying.arriving), "a goodbye ends what has not come yet"
        while staying.arriving:
            staying.fill(0)
    else:
        staying.protocol.end(PeerLostError(leaver, "the connection broke"))
        staying.arriving.clear()
        staying.execute()
    for tensor in world.sends[1 - leaver]:
        assert tensor.outcome == "done" or isinstance(tensor.outcome, TransportError)
    kept = sum(message.contents is not None for queue in staying.protocol._unexpected.values() for message in queue)
    for tag in range(3):
        world.post(1 - leaver, "send", tag, 1)
        for _ in range(kept + 1):
            world.post(1 - leaver, "receive", tag, max(SIZES))
    outcomes = [tensor.outcome for tensor in (*world.sends[1 - leaver], *world.receives[1 - leaver])]
    assert None not in outcomes, "something waits for a member that is gone"
    assert not staying.protocol._unexpected, "what has come whole can still be received"


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(programs, st.lists(st.tuples(st.integers(0, 1), st.integers(0, 10)), max_size=6))
def test_who_gives_up_leaves_the_others_matched(program: list[Any], given_up: list[tuple[int, int]]) -> None:
    world = World()
    withdrawn = set()
    for position, (action, *arguments) in enumerate(program):
        world.act(action, *arguments)
        for rank, index in given_up if position % 5 == 4 else ():
            member = world.members[rank]
            if index < len(world.sends[rank]):
                tensor = world.sends[rank][index]
                if tensor.outcome is None and member.protocol.withdraw(tensor):
                    member.finish(tensor, "withdrawn")
                    withdrawn.add(tensor)
            if index < len(world.receives[rank]):
                tensor = world.receives[rank][index]
                if tensor.outcome is None and tensor.claim(-1):
                    member.protocol.forget(tensor)
                    member.finish(tensor, "withdrawn")
            member.execute()
    world.settle()
    for receiver in range(2):
        sends, receives = world.by_tag(world.sends[1 - receiver]), world.by_tag(world.receives[receiver])
        for tag in range(3):
            order = [each.contents.number for each in receives[tag] if each.contents is not None]
            assert order == sorted(order), "a message has overtaken another"
            waiting = [each for each in receives[tag] if each.outcome is None]
            unsent = [each for each in sends[tag] if each.outcome is None]
            assert not (waiting and unsent), "both sides wait"
    for tensor in withdrawn:
        assert tensor.outcome == "withdrawn"


def test_a_receive_that_another_pair_has_taken_is_passed_over() -> None:
    world = World()
    world.post(1, "receive", 0, 10)
    world.receives[1][0].claim(7)
    world.post(1, "receive", 0, 10)
    world.post(0, "send", 0, 10)
    world.settle()
    assert world.receives[1][0].outcome is None
    assert world.receives[1][1].contents is world.sends[0][0]


def test_another_type_is_no_message_for_it() -> None:
    world = World()
    world.post(0, "send", 5, 10, dtype=DTYPES.index("float32"))
    world.post(1, "receive", 5, 40)
    world.settle()
    with pytest.raises(FrameMismatchError, match=r"rank 0 sends 10 float32 \(40 B\) with tag 5; rank 1 .* 40 uint8"):
        raise world.receives[1][0].outcome


def test_control_messages_are_checked() -> None:
    control = Control(Kind.ANNOUNCE, 2**40, Envelope(-7, 3, 2**50))
    assert Control.unpack(control.pack()) == control
    for garbled in (b"\x08" + control.pack()[1:], b"\x01\xff" + control.pack()[2:]):
        with pytest.raises(FrameMismatchError, match="not a control message"):
            Control.unpack(garbled)
    with pytest.raises(FrameMismatchError, match="which was not requested"):
        PairProtocol(0, 1).hear(Control(Kind.DATA, 3))

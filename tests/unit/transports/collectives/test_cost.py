"""Bytes, bounds, the interpreter and the alpha-beta time of schedules."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from transports.collectives.base import Chunk, Collective, Operation, Step, World
from transports.collectives.cost import DeadlockError, TrafficCount, bound_s, interpret, sent_bytes
from transports.collectives.ring import Ring
from transports.collectives.timing import alpha_beta_time_s

FOUR = World(num_workers=4)


class _Given(Collective):
    """Schedules that a test writes down."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce",))

    steps: tuple[tuple[Step, ...], ...]

    def schedule(
        self,
        operation: Operation,
        world: World,
        participant: int,
        num_elements: int,
        *,
        element_bytes: int,
        root: int = 0,
    ) -> Sequence[Step]:
        return self.steps[participant]


def step(kind: str, count: int, peer: int, start: int = 0) -> Step:
    return Step(kind, Chunk("output", start, count), peer)  # type: ignore[arg-type]


def time_s(steps: tuple[tuple[Step, ...], ...], gamma_s_per_byte: float = 0.0) -> float:
    return alpha_beta_time_s(
        _Given(steps=steps),
        "all_reduce",
        World(num_workers=len(steps)),
        0,
        1,
        alpha_s=1.0,
        beta_s_per_byte=0.01,
        gamma_s_per_byte=gamma_s_per_byte,
    )


def test_bytes_and_messages_are_counted_by_pair() -> None:
    counts = sent_bytes(
        Ring.model_validate({"segment_bytes": "40B"}), "broadcast", World(num_workers=3), 100, 4, root=1
    )
    assert counts == {pair: TrafficCount(payload_bytes=400, num_messages=10) for pair in ((1, 2), (2, 0))}


def test_bounds_follow_patarasuk_and_yuan() -> None:
    def bound(operation: Operation, num_workers: int = 4) -> float:
        return bound_s(operation, world=World(num_workers=num_workers), size_bytes=1000, goodput_bps=8000.0)

    assert bound("all_reduce") == pytest.approx(1.5)
    assert bound("reduce_scatter") == bound("all_gather") == pytest.approx(0.75)
    assert bound("broadcast") == pytest.approx(1.0)
    assert bound("reduce") == pytest.approx(1.0)
    assert bound("gather") == bound("scatter") == bound("all_to_all") == pytest.approx(0.75)
    assert bound("barrier") == bound("all_reduce", 1) == bound("broadcast", 1) == 0.0


def test_a_message_costs_alpha_and_its_bytes() -> None:
    assert time_s(((step("send", 100, 1),), (step("receive", 100, 0),))) == pytest.approx(2.0)


def test_latency_passes_while_the_link_carries_the_next_message() -> None:
    sends = tuple(step("send", 100, 1, start) for start in (0, 100, 200))
    receives = tuple(step("receive", 100, 0, start) for start in (0, 100, 200))
    assert time_s((sends, receives)) == pytest.approx(1.0 + 3.0)


def test_both_directions_of_a_link_carry_at_once() -> None:
    pair = tuple((step("send", 100, peer), step("receive", 100, peer, 100)) for peer in (1, 0))
    assert time_s(pair) == pytest.approx(2.0)


def test_messages_to_one_receiver_share_its_link() -> None:
    fan_in = (
        (step("receive", 100, 1), step("receive", 100, 2, 100)),
        (step("send", 100, 0),),
        (step("send", 100, 0),),
    )
    assert time_s(fan_in) == pytest.approx(1.0 + 2.0)


def test_messages_of_one_sender_share_its_link() -> None:
    fan_out = ((step("send", 100, 1), step("send", 100, 2)), (step("receive", 100, 0),), (step("receive", 100, 0),))
    assert time_s(fan_out) == pytest.approx(1.0 + 2.0)


def test_adding_costs_gamma_one_message_after_the_other() -> None:
    fan_in = (
        (step("reduce", 100, 1), step("reduce", 100, 2, 100)),
        (step("send", 100, 0),),
        (step("send", 100, 0),),
    )
    assert time_s(fan_in, gamma_s_per_byte=0.05) == pytest.approx(1.0 + 1.0 + 5.0 + 5.0)


def test_a_ring_without_segments_takes_the_textbook_time() -> None:
    ring = Ring.model_validate({"segment_bytes": "4kB"})
    taken_s = alpha_beta_time_s(
        ring, "all_reduce", FOUR, 4000, 4, alpha_s=50e-6, beta_s_per_byte=8e-9, gamma_s_per_byte=1e-9
    )
    assert taken_s == pytest.approx(6 * (50e-6 + 4000 * 8e-9) + 3 * 4000e-9)


def test_segments_hide_latency_and_adding() -> None:
    taken_s = alpha_beta_time_s(
        Ring(), "all_reduce", FOUR, 25_000_000 // 4, 4, alpha_s=200e-6, beta_s_per_byte=8e-9, gamma_s_per_byte=0.2e-9
    )
    floor_s = bound_s("all_reduce", world=FOUR, size_bytes=25_000_000, goodput_bps=1e9)
    assert floor_s < taken_s < 1.02 * floor_s


def test_who_waits_for_a_message_that_is_never_sent_is_found() -> None:
    steps = ((step("receive", 1, 1),), ())
    with pytest.raises(DeadlockError, match=r"\[0\]"):
        interpret(steps, [{"output": np.zeros(1)}, {"output": np.zeros(1)}])
    with pytest.raises(DeadlockError, match=r"\[0\]"):
        time_s(steps)


def test_a_circle_of_waiting_is_found() -> None:
    # Each sends on only what it has received first.
    steps = tuple((step("receive", 1, 1 - rank), step("send", 1, 1 - rank)) for rank in range(2))
    with pytest.raises(DeadlockError, match=r"\[0, 1\]"):
        interpret(steps, [{"output": np.zeros(1)}, {"output": np.zeros(1)}])


def test_messages_of_different_lengths_are_found() -> None:
    steps = ((step("send", 2, 1),), (step("receive", 1, 0),))
    with pytest.raises(DeadlockError, match="differ in length"):
        interpret(steps, [{"output": np.zeros(2)}, {"output": np.zeros(2)}])


@pytest.mark.parametrize(
    ("num_workers", "num_servers", "share"), [(8, 1, 8.0), (8, 2, 4.0), (8, 3, 8 / 3), (8, 8, 1.0), (4, 9, 1.0)]
)
def test_few_servers_bind_and_many_halve_what_workers_send(num_workers: int, num_servers: int, share: float) -> None:
    world = World(num_workers=num_workers, num_servers=num_servers)
    assert bound_s("all_reduce", world=world, size_bytes=1000, goodput_bps=8000.0) == pytest.approx(share)


def test_what_is_to_be_added_may_come_before_its_place_is_free() -> None:
    # Both send what they will add to: neither could if the other took nothing before it has sent.
    every = tuple((step("send", 1, 1 - rank), step("reduce", 1, 1 - rank)) for rank in range(2))
    buffers = [{"output": np.array([float(rank + 1)])} for rank in range(2)]
    assert interpret(every, buffers) == 2  # type: ignore[arg-type]
    assert [buffer["output"][0] for buffer in buffers] == [3.0, 3.0]
    assert time_s(every) == pytest.approx(1.01)


def test_a_participant_adds_what_it_has_kept_for_itself() -> None:
    kept = Step("receive", Chunk("scratch", 0, 1), 1)
    added = Step("add", Chunk("output", 0, 1), 0, Chunk("scratch", 0, 1))
    every = ((kept, added), (step("send", 1, 0),))
    buffers = [{"output": np.array([4.0])}, {"output": np.array([3.0])}]
    interpret(every, buffers)  # type: ignore[arg-type]
    assert buffers[0]["output"][0] == 7.0
    assert time_s(every, gamma_s_per_byte=0.5) == pytest.approx(1.01 + 0.5)

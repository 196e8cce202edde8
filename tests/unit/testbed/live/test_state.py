from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from testbed.live.messages import Change, Iteration, Links, Message, Opening, Past, Phase
from testbed.live.state import MOST_CHANGES, MOST_ITERATIONS, MOST_PAST, State
from tests.live import opened

OPENING = opened(workers=2)


def iteration(number: int) -> Iteration:
    return Iteration(at_s=number, phase="measured", number=number, time_s=0.1, parts_s={}, loss=1.0)


def links(at_s: float) -> Links:
    return Links(at_s=at_s, rate_bps=[1] * 4, used_permille=[0] * 4, waiting_bytes=[0] * 4, dropped=[0] * 4)


def carrier(at_s: float, sender: str, receiver: str, after: str) -> Change:
    before = "up" if after == "down" else "down"
    link = f"{max(sender, receiver)}-{min(sender, receiver)}"
    return Change(
        at_s=at_s, link=link, sender=sender, receiver=receiver, setting="carrier", before=before, after=after,
        source="manual",
    )  # fmt: skip


def folded(messages: list[Message]) -> State:
    state = State()
    for message in messages:
        state.fold(message)
    return state


MESSAGES = st.lists(
    st.one_of(
        st.integers(1, 9).map(lambda number: Phase(at_s=number, name=f"phase {number}")),
        st.integers(1, 9).map(iteration),
        st.integers(1, 9).map(links),
        st.sampled_from(["up", "down"]).map(lambda after: carrier(1, "w0", "s0", after)),
        st.just(OPENING),
        st.just(Past(point="a", outcome="valid", iteration_time_s=1.0)),
    ),
    max_size=60,
)


@given(MESSAGES)
def test_who_gets_the_state_knows_what_who_heard_everything_knows(messages: list[Message]) -> None:
    state = folded([OPENING, *messages])
    said = state.messages()
    assert folded(said).messages() == said
    later: list[Message] = [iteration(99), links(99), carrier(99, "s0", "w1", "down")]
    everything, late = folded([OPENING, *messages, *later]), folded([*said, *later])
    assert [m for m in late.messages() if not isinstance(m, Iteration)] == [
        m for m in everything.messages() if not isinstance(m, Iteration)
    ]


def test_it_is_bounded_and_the_last_iteration_is_in_it() -> None:
    state = folded([OPENING])
    for number in range(1, 10_001):
        state.fold(iteration(number))
        state.fold(links(number))
        state.fold(carrier(number, "w0", "s0", "down" if number % 2 else "up"))
        state.fold(Past(point=str(number), outcome="valid", iteration_time_s=None))
    said = state.messages()
    assert len(said) <= MOST_ITERATIONS + MOST_CHANGES + MOST_PAST + 4
    numbers = [message.number for message in said if isinstance(message, Iteration)]
    assert (numbers[0], numbers[-1]) == (1, 10_000)
    assert len({after - before for before, after in pairwise(numbers[:-1])}) == 1, "thinned evenly"
    assert [message.at_s for message in said if isinstance(message, Links)] == [10_000]


def test_a_link_that_is_down_is_down_for_who_comes_late() -> None:
    state = folded([OPENING, carrier(1, "w0", "s0", "down"), carrier(2, "s0", "w1", "down")])
    for number in range(2 * MOST_CHANGES):  # what took them down is forgotten
        state.fold(carrier(3 + number, "w1", "s0", "down" if number % 2 == 0 else "up"))
    (opening,) = (message for message in state.messages() if isinstance(message, Opening))
    down = {(each.sender, each.receiver) for each in opening.directions if each.down}
    assert down == {("w0", "s0"), ("s0", "w1")}


def test_another_run_begins_anew_and_remembers_those_before() -> None:
    past = Past(point="a", outcome="valid", iteration_time_s=1.0)
    state = folded([OPENING, iteration(1), links(1), carrier(1, "w0", "s0", "down"), past, OPENING])
    assert state.messages() == [past, OPENING]

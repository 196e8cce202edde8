"""When a sweep may say that nothing of it runs on a machine any more."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.runner.engines._lease import Contact, Fence, RefusedError, Timing


def test_a_later_session_takes_the_slot_and_the_earlier_one_is_refused() -> None:
    fence = Fence(10.0)
    fence.claim("a", 1, 0.0)
    fence.claim("a", 5, 1.0)
    with pytest.raises(RefusedError, match="held by process 5 of a"):
        fence.renew(1, 1.5)
    with pytest.raises(RefusedError, match=r"a later process \(5\) of the same sweep"):
        fence.claim("a", 4, 1.5)
    assert fence.renew(5, 2.0) == 11.0


def test_another_sweep_gets_the_slot_when_nobody_is_heard_of_any_more() -> None:
    fence = Fence(10.0)
    fence.claim("a", 1, 0.0)
    with pytest.raises(RefusedError, match="another sweep has the slot: a"):
        fence.claim("b", 7, 9.9)
    fence.claim("b", 7, 10.0)
    fence.release()
    fence.claim("a", 2, 10.1)


def test_a_call_that_comes_after_the_lease_prolongs_nothing() -> None:
    fence = Fence(10.0)
    fence.claim("a", 1, 0.0)
    with pytest.raises(RefusedError, match=r"the lease ended 0\.5 s before"):
        fence.renew(1, 10.5)
    with pytest.raises(RefusedError):
        fence.renew(1, 10.6)


def test_an_attempt_that_was_given_up_does_not_begin_when_its_call_comes_at_last() -> None:
    fence = Fence(10.0)
    fence.claim("a", 1, 0.0)
    assert fence.begin(1, 4, 1.0) == 10.0
    fence.claim("a", 1, 20.0, given_up=5)
    for late in (4, 5):
        with pytest.raises(RefusedError, match=f"attempt {late} was given up"):
            fence.begin(1, late, 21.0)
    assert fence.begin(1, 6, 22.0) == 30.0
    fence.release()
    fence.claim("b", 1, 23.0)
    fence.begin(1, 2, 24.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.floats(0, 30), st.booleans()),  # on the way there, back, whether it gets back
        max_size=20,
    )
)
def test_no_run_goes_on_when_the_contact_is_over(calls: list[tuple[float, float, bool]]) -> None:
    """However long calls and answers are under way, and whichever of them are lost."""
    timing = Timing(lease_s=10.0, grace_s=5.0, margin_s=1.0)
    fence, now_s = Fence(timing.lease_s), 0.0
    fence.claim("a", 1, now_s)
    contact, ends_s = Contact(timing, now_s), timing.lease_s
    for there_s, back_s, arrives in calls:
        given_up_s = now_s + contact.left_s(now_s)
        with contextlib.suppress(RefusedError):
            ends_s = max(ends_s, fence.renew(1, now_s + there_s))
        answered_s = now_s + there_s + back_s
        assert ends_s + timing.grace_s < given_up_s
        if not arrives or answered_s >= given_up_s:
            break
        now_s = answered_s
        contact.heard(now_s)


def test_the_lease_goes_on_from_an_answer_that_took_long_to_make() -> None:
    fence = Fence(10.0)
    fence.claim("a", 1, 0.0)
    fence.renew(1, 5.0)
    fence.answered(14.0)
    assert fence.renew(1, 20.0) == 24.0, "the answer of 14 s may have arrived"

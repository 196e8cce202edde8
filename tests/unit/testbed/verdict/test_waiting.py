"""What waiting for a core may have cost, calculated manually."""

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from testbed.record.frames import WAIT_SCHEMA
from testbed.record.summary import WaitingSummary
from testbed.verdict.waiting import is_withheld, lengthened, run_queue_share, waiting_summary
from tests.facts import LINK, facts
from tests.rows import bucket, buckets, iteration, iterations

NOTHING = WaitingSummary(of_exposed=0.0)


def test_run_queue_share_is_of_exposed_communication_and_no_share_where_it_cannot_matter() -> None:
    rows = iterations(iteration(0, 10.0), iteration(1, 10.0), iteration(1, 1.0, "warmup"))
    assert run_queue_share(rows, num_workers=2, ranks=[0, 1]) == pytest.approx(0.2 / 6.0)
    assert run_queue_share(rows, num_workers=2, ranks=[1]) == pytest.approx(0.1 / 3.0)
    assert run_queue_share(rows, num_workers=2, ranks=[]) is None
    assert run_queue_share(iterations(), num_workers=2, ranks=[0, 1]) is None
    hidden = [iteration(rank, 10.0, backward_end_s=13.0, optimizer_end_s=13.5, end_s=13.75) for rank in range(2)]
    waited = [{**row, "communication_run_queue_delay_s": 0.03} for row in hidden]
    assert run_queue_share(iterations(*waited), num_workers=2, ranks=[0, 1]) == 0, "less than 1 % of 3.75 s"
    waited = [{**row, "communication_run_queue_delay_s": 0.05} for row in hidden]
    assert run_queue_share(iterations(*waited), num_workers=2, ranks=[0, 1]) == 1


def lengthened_share(
    rows: pl.DataFrame, times: pl.DataFrame, *, ranks: list[int], serving_s: float = 0.0, **known: Any
) -> float | None:
    """By sums, of two workers."""
    serving = {"ps0": serving_s} if serving_s else {}
    found = lengthened(rows, times, num_workers=2, ranks=ranks, waits=None, serving_s=serving, **known)
    return None if found is None else found.share


def share_of_sums(bound_s: float, *, waited_s: float = 1.0, **changes: Any) -> float | None:
    """Two buckets, handed over 2 s before the last gradient and with it, that took 5 s and ended 3 s after it; each of
    two workers waited so long for a core."""
    rows = [iteration(rank, 10.0, communication_run_queue_delay_s=waited_s, **changes) for rank in range(2)]
    times = [
        bucket(rank, at_s, done_s) | {"sequence": sequence}
        for rank in range(2)
        for sequence, (at_s, done_s) in enumerate([(11.0, 13.5), (13.0, 16.0)])
    ]
    return lengthened_share(iterations(*rows), buckets(*times), ranks=[0, 1], bound_s=bound_s)


def test_waiting_lengthens_communication_by_no_more_than_it_took_beyond_what_links_allow() -> None:
    assert share_of_sums(0.0) == pytest.approx(1 / 3), "of exposed communication, all of which may be the wait's"
    assert share_of_sums(2.0) == pytest.approx(1 / 3), "2 of 3 s are beyond the least"
    assert share_of_sums(4.8) == pytest.approx(0.2 / 3), "the first bucket hides 2 s of 2.4 s: 2.8 s had to be exposed"
    assert share_of_sums(4.95) == pytest.approx(0.05 / 5), (
        "0.05 of 6.75 s change no iteration, and are 1 % of communication"
    )
    assert share_of_sums(5.0) == 0, "as fast as links"
    assert share_of_sums(4.8, forward_stall_s=0.1) == pytest.approx(0.2 / 3.1), (
        "what is left may hide in the next forward pass, but 4.8 of 5 s were the links'"
    )
    assert share_of_sums(2.0, forward_stall_s=0.1) == pytest.approx(1 / 3.1), "nor more than was waited"
    assert share_of_sums(0.0, waited_s=0.06) == pytest.approx(0.06 / 5), "of all: exposed, less than 1 % of 6.75 s"
    rows = iterations(iteration(0, 10.0), iteration(1, 10.0))
    assert lengthened_share(rows, buckets(), ranks=[], bound_s=1.0) is None
    alone = lengthened_share(rows, buckets(), ranks=[0], in_step=False, ends_together=False, bound_s=9.0)
    assert alone == pytest.approx(0.1 / 3), "workers that do not wait for each other have no least in common"


def test_what_iterations_can_have_lost_is_what_of_it_is_exposed() -> None:
    exposed = together(("w0", False, 13.0, 15.0), bound_s=2.5)
    assert (exposed.share, exposed.of_iterations) == pytest.approx((0.5 / 3, 0.5 / 6.75))
    hidden = together(("w0", False, 13.0, 15.0), backward_compute_end_s=16.0)
    assert (hidden.of_exposed, hidden.of_iterations) == (0, 0)
    assert hidden.share == hidden.of_communication == pytest.approx(2 / 3), "of all communication"


def test_a_number_that_is_the_machines_is_withheld_where_the_iterations_are_not() -> None:
    assert is_withheld(together(("w0", False, 13.0, 13.7), backward_compute_end_s=16.0)), "of 3 s, and of no iteration"
    assert not is_withheld(together(("w0", False, 13.0, 13.1), backward_compute_end_s=16.0)), "3 %"
    assert not is_withheld(together(("w0", False, 13.0, 15.0))), "nothing of such a run stands"


def test_each_worker_waits_for_the_server_that_waited_longest() -> None:
    def share(serving_s: float, *, waited_s: float = 0.0, **changes: Any) -> float | None:
        rows = [iteration(rank, 10.0, communication_run_queue_delay_s=waited_s) for rank in range(2)]
        known: dict[str, Any] = {"ranks": [0, 1], "bound_s": 1.0, **changes}
        return lengthened_share(iterations(*rows), buckets(bucket(0, 13.0, 16.0)), serving_s=serving_s, **known)

    assert share(0.3) == pytest.approx(0.3 / 3), "as if each worker had waited so long itself"
    assert share(0.3) == share(0.0, waited_s=0.3)
    assert share(0.3, ranks=[1]) == pytest.approx(0.3 / 3), "of those that are judged"
    assert share(0.3, in_step=False, ends_together=False) == pytest.approx(0.3 / 3)
    assert share(2.9) == pytest.approx(2.0 / 3), "no more than what is beyond the least"
    assert share(0.06) == pytest.approx(0.06 / 3), "of all communication, though less than 1 % of 6.75 s"
    assert share(0.06, in_step=False, ends_together=False) == 0


def test_waiting_in_communication_that_computing_hides_lengthens_it_all_the_same() -> None:
    hidden: dict[str, Any] = {"backward_end_s": 13.0, "optimizer_end_s": 13.5, "end_s": 13.75}
    rows = [iteration(rank, 10.0, communication_run_queue_delay_s=0.5, **hidden) for rank in range(2)]
    times = buckets(*(bucket(rank, 10.5, 12.5) for rank in range(2)))

    def share(bound_s: float) -> float | None:
        return lengthened_share(iterations(*rows), times, ranks=[0, 1], bound_s=bound_s)

    assert share(1.9) == pytest.approx(0.1 / 2)
    assert share(1.0) == pytest.approx(0.5 / 2)


def waits(*rows: tuple[str, bool, float, float], behind: bool = False) -> pl.DataFrame:
    every = [(host, computing, behind and computing, *span) for host, computing, *span in rows]
    return pl.DataFrame(every, schema=WAIT_SCHEMA, orient="row")


def together(
    *rows: tuple[str, bool, float, float],
    bound_s: float = 0.0,
    exchanged: bool = True,
    done_s: float = 16.0,
    behind: bool = False,
    **changes: Any,
) -> WaitingSummary:
    """Two workers whose gradients are ready at 13 s and back at 16 s; one bucket, handed over at 12 s by the first, at
    13 s by the second. What they say of sums is nonsense."""
    known: dict[str, Any] = {"ranks": [0, 1], "in_step": True, **changes.pop("known", {})}
    iteration_rows = [iteration(rank, 10.0, communication_run_queue_delay_s=99.0, **changes) for rank in range(2)]
    times = buckets(*(bucket(rank, 12.0 + rank, done_s) for rank in range(2))) if exchanged else buckets()
    found = lengthened(
        iterations(*iteration_rows),
        times,
        num_workers=2,
        waits=waits(*rows, behind=behind),
        serving_s={"ps0": 99.0},
        bound_s=bound_s,
        **known,
    )
    assert found is not None
    return found


def test_threads_that_wait_together_count_once_whatever_their_hosts() -> None:
    found = together(("w0", False, 13.5, 14.0), ("w1", False, 13.75, 14.25), ("ps0", False, 13.5, 14.0))
    assert found == WaitingSummary(
        of_exposed=0.75 / 3,
        of_communication=0.75 / 3,
        of_iterations=0.75 / 6.75,
        waited_s=0.75,
        by_host_s={"w0": 0.5, "w1": 0.5, "ps0": 0.5},
    )
    one_after_the_other = together(("w0", False, 13.5, 14.0), ("w1", False, 14.0, 14.5))
    assert one_after_the_other.share == pytest.approx(1.0 / 3), "a chain may lead through both"
    assert together() == NOTHING


def test_waiting_while_nothing_is_exchanged_costs_nothing() -> None:
    assert together(("w0", False, 10.5, 11.5), ("w1", False, 16.0, 17.0)) == NOTHING
    early = together(("w0", False, 11.75, 12.5))
    assert early.share == pytest.approx(0.5 / 3), "the first member had handed it over"
    assert together(("w0", False, 10.5, 11.5), exchanged=False).share == pytest.approx(1 / 3), "nobody knows when"


def test_no_iteration_loses_more_than_it_waited_nor_than_what_it_took_beyond_its_links() -> None:
    assert together(("w0", False, 13.0, 15.0), bound_s=2.5).share == pytest.approx(0.5 / 3)
    assert together(("w0", False, 13.0, 15.0), bound_s=3.0) == NOTHING.model_copy(
        update={"waited_s": 2.0, "by_host_s": {"w0": 2.0}}
    )
    rows = iterations(*(iteration(rank, 10.0 + 7 * index, index=index) for index in range(2) for rank in range(2)))
    times = buckets(
        *(bucket(rank, 13.0, 16.0) for rank in range(2)), *(bucket(rank, 20.0, 23.0, index=1) for rank in range(2))
    )

    def share(*waited: tuple[str, bool, float, float], bound_s: float) -> float:
        found = lengthened(
            rows, times, num_workers=2, ranks=[0, 1], waits=waits(*waited), serving_s={}, bound_s=bound_s
        )
        assert found is not None
        return found.share

    uneven = share(("w0", False, 13.0, 15.5), bound_s=2.0)
    assert uneven == pytest.approx(1.0 / 6), "all of it was in the first, of which 1 s is beyond the bound"


def test_what_is_less_than_a_hundredth_of_the_iterations_is_nothing_of_what_is_exposed() -> None:
    soon: dict[str, Any] = {"backward_compute_end_s": 15.8}
    assert together(("w0", False, 15.8, 15.86), **soon).share == pytest.approx(0.06 / 3), "of 6.75 s: of all then"
    assert together(("w0", False, 15.8, 15.87), **soon).share == pytest.approx(0.07 / 0.2)


def test_how_long_hidden_communication_took_is_shown_whatever_share_of_an_iteration_it_is() -> None:
    hidden: dict[str, Any] = {"backward_compute_end_s": 15.9, "backward_end_s": 15.9}
    found = together(("w0", False, 13.02, 13.06), done_s=13.06, **hidden)
    assert (found.share, found.of_iterations) == (pytest.approx(0.04 / 0.06), 0)


def uneven(
    *took_s: float, waited_s: float, payload_bytes: tuple[int, ...] = (), bound_s: float = 0.0, **known: Any
) -> WaitingSummary:
    """Iterations whose only bucket took so long each, all of it exposed; of each so much was waited, where it took no
    longer than a second and any time at all."""
    begun_s, rows, times, waited = 10.0, [], [], []
    for index, each_s in enumerate(took_s):
        ready_s, back_s = begun_s + 3, begun_s + 3 + each_s
        moments: dict[str, Any] = {"backward_end_s": back_s, "optimizer_end_s": back_s, "end_s": back_s}
        rows += [iteration(rank, begun_s, index=index, **moments) for rank in range(2)]
        payload = {"payload_bytes": payload_bytes[index]} if payload_bytes else {}
        times += [bucket(rank, ready_s, back_s, index=index) | payload for rank in range(2)] if each_s else []
        waited += [("w0", False, ready_s, ready_s + waited_s)] if 0 < each_s <= 1 else []
        begun_s = back_s
    known |= {"num_workers": 2, "ranks": [0, 1], "serving_s": {}, "bound_s": bound_s}
    found = lengthened(iterations(*rows), buckets(*times), waits=waits(*waited), **known)
    assert found is not None
    return found


def test_a_long_iteration_that_lost_nothing_hides_from_no_median_what_the_others_lost() -> None:
    found = uneven(1.0, 1.0, 200.0, 1.0, 1.0, waited_s=0.5)
    assert found.share == pytest.approx(0.5), "of the median all-reduce; of their mean it is 1 %"
    assert found.of_iterations == pytest.approx(0.5 / 4)
    assert uneven(1.0, 1.0, 1.0, waited_s=0.5).of_iterations == pytest.approx(0.5 / 4)


def test_an_iteration_with_less_to_send_than_the_mean_needs_less_of_its_links() -> None:
    found = uneven(1.0, 1.0, 3.0, waited_s=0.8, payload_bytes=(10, 10, 280), bound_s=1.0)
    assert found.share == pytest.approx(0.8), "a tenth of the mean's bytes need 0.1 s, not all of 1 s"


def test_where_workers_exchange_now_and_then_a_long_round_hides_from_no_median_what_the_others_lost() -> None:
    """Local SGD: of four iterations one exchanges, and rounds are shown, not iterations."""
    took_s = [0.0, 0.0, 0.0, 1.0] * 4 + [0.0, 0.0, 0.0, 900.0, 0.0]
    alone = uneven(*took_s, waited_s=0.9)
    assert alone.of_iterations < 0.05, "of the mean iteration, and of the median one, which exchanges nothing"
    rounds = uneven(*took_s, waited_s=0.9, exchange_every=4)
    assert rounds.of_iterations == pytest.approx(0.9 / 13), "of the median round"
    assert not is_withheld(rounds)
    short = uneven(0.0, 1.0, waited_s=0.9, exchange_every=4)
    assert short.of_iterations == pytest.approx(0.9 / 7), "a round that did not come to its end, the only one"


def test_what_links_let_go_at_once_needs_no_time_that_waiting_could_not_have_taken() -> None:
    """After a pause a token bucket is full, and an exchange that is as fast as its rate may have waited."""
    waited = ("w0", False, 13.0, 15.0)
    assert together(waited, bound_s=3.0).share == 0
    burst = together(waited, bound_s=3.0, known={"at_once_s": 0.3})
    assert (burst.of_exposed, burst.of_communication) == pytest.approx((0.3 / 3, 0.3 / 3))
    assert together(waited, bound_s=3.0, known={"at_once_s": 9.0}).share == pytest.approx(2.0 / 3), "not below nothing"
    rows = iterations(*(iteration(rank, 10.0, backward_compute_end_s=15.9) for rank in range(2)))
    times = [
        bucket(rank, at_s, done_s) | {"sequence": sequence}
        for rank in range(2)
        for sequence, (at_s, done_s) in enumerate([(10.5, 11.5), (13.0, 14.0), (14.0, 15.0)])
    ]
    found = lengthened(
        rows,
        buckets(*times),
        num_workers=2,
        ranks=[0, 1],
        waits=waits(("w0", False, 10.5, 15.0)),
        serving_s={},
        bound_s=3.0,
        at_once_s=0.1,
    )
    assert found is not None
    assert found.of_communication == pytest.approx(0.2 / 3), "links were idle twice before, not three times"


def test_a_link_that_workers_share_may_have_carried_others_bytes_before_the_last_handed_its_bucket_over() -> None:
    """Half of a ring's bytes may have crossed a trunk before: what is as fast as its links since may have waited."""
    waited = ("w0", False, 13.0, 15.0)
    own = together(waited, bound_s=3.0)
    assert own.share == 0
    shared = together(waited, bound_s=3.0, known={"shared": True})
    assert shared.of_communication == pytest.approx(1.0 / 3), "4 s since the first"
    assert shared.of_exposed == pytest.approx(1.0 / 3)
    assert together(waited, bound_s=4.0, known={"shared": True}).share == 0


def test_where_workers_links_differ_the_most_loaded_one_need_not_be_the_last_workers() -> None:
    known = facts(
        iterations=iterations(*(iteration(rank, 10.0) for rank in range(2))),
        buckets=buckets(bucket(0, 12.0, 16.0), bucket(1, 13.0, 16.0)),
        waits=waits(("w0", False, 13.0, 15.0)),
        links=[LINK, replace(LINK, name="w1-s0", from_="w1")],
    )
    alike = waiting_summary(known)
    assert alike is not None
    assert alike.share == pytest.approx(0.0, abs=0.001), "as fast as links"
    unlike = waiting_summary(replace(known, links=[LINK, replace(LINK, name="w1-s0", from_="w1", rate_bps=10e6)]))
    assert unlike is not None
    assert unlike.of_communication == pytest.approx(1.0 / 3, abs=0.01)


def test_times_are_given_in_virtual_time_and_shares_are_the_same() -> None:
    fast = together(("w0", False, 13.0, 14.0))
    slow = together(("w0", False, 13.0, 14.0), known={"dilation": 4.0})
    assert (slow.waited_s, slow.by_host_s) == (0.25, {"w0": 0.25})
    assert (slow.of_exposed, slow.of_communication, slow.of_iterations) == (
        fast.of_exposed,
        fast.of_communication,
        fast.of_iterations,
    )


def test_who_waits_for_a_core_when_the_last_sum_is_there_is_still_exposed() -> None:
    found = together(("w0", True, 15.5, 15.9), done_s=15.5)
    assert found.waited_s == pytest.approx(0.4)
    assert found.share == pytest.approx(0.4 / 2.5), "of all communication, which is shorter than what is exposed of it"


def test_threads_that_compute_count_where_they_have_nothing_to_compute() -> None:
    computing = ("w0", True, 12.0, 17.0)
    assert together(computing).waited_s == pytest.approx(3.0), "from its last gradient to the last sum"
    assert together(("w0", True, 12.0, 13.0)) == NOTHING
    stalled = together(("w0", True, 10.0, 11.0), forward_stall_s=0.1, exchanged=False)
    assert stalled.waited_s == pytest.approx(0.75), "in the forward pass, from 10.25 to 11 s"
    both = together(computing, ("w1", True, 15.0, 18.0), ("w1", False, 12.5, 13.25))
    assert both.waited_s == pytest.approx(3.5)
    assert both.by_host_s == pytest.approx({"w0": 3.0, "w1": 1.75})


def test_who_waits_behind_the_thread_that_does_the_work_it_waits_for_loses_nothing() -> None:
    """Handed over at 12 and 13 s, all back at 15.5 s."""

    def lost_s(*row: Any, **changes: Any) -> float:
        return together(row, done_s=15.5, behind=True, **changes).waited_s

    assert lost_s("w0", True, 12.0, 15.5) == lost_s("w1", True, 13.0, 15.5) == 0
    assert lost_s("w0", True, 15.0, 17.0) == pytest.approx(0.5), "when the last sum is there, nothing is left to do"
    assert lost_s("w1", True, 12.0, 15.0, backward_compute_end_s=12.5) == pytest.approx(0.5), "who has not handed over"
    assert lost_s("w0", True, 13.0, 15.0, exchanged=False) == pytest.approx(2.0), "nothing is known of exchanges"
    assert lost_s("w0", True, 10.0, 11.0, forward_stall_s=0.1, exchanged=False) == pytest.approx(0.75), (
        "in the forward pass"
    )
    assert lost_s("w0", False, 13.0, 14.0) == pytest.approx(1.0), "those that move gradients hold each other up"


def test_of_workers_that_do_not_wait_for_each_other_all_waiting_counts_in_all_of_the_iteration() -> None:
    found = together(("ps0", False, 10.5, 11.0), bound_s=9.0, known={"in_step": False})
    assert found.share == pytest.approx(2 * 0.5 / 6)
    assert together(("ps0", False, 10.5, 10.55), known={"in_step": False}).share == 0


def test_where_communication_trails_into_the_next_iteration_all_of_it_must_have_taken_longer_than_links_need() -> None:
    def trailing(bound_s: float) -> float:
        return together(("w0", False, 13.0, 14.0), bound_s=bound_s, forward_stall_s=0.25).share

    assert trailing(2.9) == pytest.approx(1.0 / 3.25), "it was pending for 4 s"
    assert trailing(3.5) == pytest.approx(0.5 / 3.25)
    assert trailing(4.0) == 0

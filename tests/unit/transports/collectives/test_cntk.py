"""CNTK's own promises; what every collective promises is in `tests/contract/test_collectives.py`."""

from transports.collectives.base import World
from transports.collectives.cntk import Cntk
from transports.collectives.cost import sent_bytes
from transports.collectives.network_info import NetworkInfo
from transports.collectives.recursive_doubling import RecursiveDoubling
from transports.collectives.schedules.expanded import schedules

FOUR = World(num_workers=4)


def test_the_main_node_hears_and_answers_everybody() -> None:
    without = sent_bytes(RecursiveDoubling(), "all_reduce", FOUR, 100, 4)
    counts = sent_bytes(Cntk(), "all_reduce", FOUR, 100, 4)
    extra = {
        pair: (count.num_messages - without[pair].num_messages, count.payload_bytes - without[pair].payload_bytes)
        if pair in without
        else (count.num_messages, count.payload_bytes)
        for pair, count in counts.items()
    }
    headers = {pair for pair, more in extra.items() if more == (1, 48)}
    assert headers == {(0, worker) for worker in (1, 2, 3)} | {(worker, 0) for worker in (1, 2, 3)}
    assert set(extra.values()) == {(1, 48), (0, 0)}


def test_a_whole_gradient_is_taken_apart_into_tensors_and_nothing_else_is() -> None:
    cntk = Cntk().with_network_info(NetworkInfo(latency_s=1.0, rate_bps=1.0), tensors=(10, 3, 20_000))
    bounds = [
        (step.chunk.start, step.chunk.start + step.chunk.count)
        for step in schedules(cntk, "all_reduce", FOUR, 20_013, 4)[1]
        if step.chunk.buffer == "output"
    ]
    assert {bound for bound in bounds if bound[1] <= 13} == {(0, 10), (10, 13)}
    assert min(start for start, end in bounds if end > 13) == 13
    assert schedules(cntk, "all_reduce", FOUR, 13, 4) == schedules(Cntk(), "all_reduce", FOUR, 13, 4)


def test_the_tensors_that_the_spec_names_stand() -> None:
    assert Cntk(tensors=(1, 2)).with_network_info(NetworkInfo(latency_s=1.0, rate_bps=1.0), tensors=(3,)).tensors == (
        1,
        2,
    )

"""The plan as a person reads it."""

import io
from typing import Any

from rich.console import Console

from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.report.terminal.plan import render_plan


def rendered(**keys: Any) -> str:
    stream = io.StringIO()
    render_plan(make_plan(validate({"name": "x", **keys})), Console(file=stream, width=200))
    return stream.getvalue()


def test_paths_and_the_bytes_that_hashes_decide_are_shown() -> None:
    text = rendered(topology="leaf_spine")
    assert "w1 > s0 > s2|s3 > s1 > w2" in text
    assert "~3,773,026" in text
    assert "7,546,008" in text
    assert "by the cost model" in text


def test_the_link_that_decides_is_named() -> None:
    text = rendered(topology="dumbbell", placement="spread")
    assert "~" not in text
    assert "by the bytes of s0 -> s1, the most loaded link that workers share" in text


def test_what_else_is_requested_of_a_direction_is_shown() -> None:
    bursts = {"kind": "gilbert_elliott", "good_to_bad": "1%", "bad_to_good": "25%"}
    links = {"w0->s0": {"delay": "2ms", "jitter": "1ms", "loss": bursts}, "s0->w0": {"loss": "1%", "queue": "250kB"}}
    text = rendered(workers=2, links=links)
    assert "2ms    1MB  jitter 1ms normal, loss 0.0385 in bursts of 4" in text
    assert "250kB  loss 0.01" in text


def test_what_is_read_from_storage_is_shown_with_its_least_time() -> None:
    full = rendered(storage={"kind": "full_read", "data": "10MB", "disk": "100mbit"})
    assert "d0 with a disk of 100mbit: every worker reads all 10MB before the first iteration" in full
    assert "40MB to read, for at least 3.346 s" in full, "on its link, with headers"
    assert "d0: storage node" in full
    batches = rendered(storage={"kind": "batch_read", "sample": "1KiB"})
    assert "64KiB for each worker's batch" in batches
    assert "7,614,536" in batches, "expected on a worker's link: gradients and a batch"


def test_what_will_change_is_shown() -> None:
    changes = [{"at": "10s", "link": "w1-s0", "rate": "50mbit"}, {"at": "12s", "link": "w0->s0", "down": True}]
    text = rendered(workers=2, changes=changes)
    assert "at 10s w1-s0: rate 50mbit" in text
    assert "at 12s w0->s0: down" in text


def test_compression_is_shown_with_what_it_saves() -> None:
    text = rendered(compression="top_k")
    assert "compressed by top_k" in text
    assert "96,216 bytes of it per worker (2.00 %) in 5 operations; the links carry" in text
    assert "~" not in text


def test_what_compression_saves_beside_an_aggregating_switch_is_of_the_workers_links() -> None:
    """It adds words of 32 bits whatever the gradients are, and is left out of what is gathered."""
    assert "the links carry 100.00 % of what they would" in rendered(collective="in_network", compression="fp16")
    top_k = {"kind": "top_k", "ratio": 0.1}
    made, without = (
        make_plan(validate({"name": "x", "collective": "in_network", "compression": each})) for each in (top_k, "none")
    )
    own, all_of_it = (
        next(each.expected_bytes or 0 for each in plan.directions if each.hop == ("w0", "s0"))
        for plan in (made, without)
    )
    share = f"the links carry {100 * own / all_of_it:.2f} % of what they would"
    assert share in rendered(collective="in_network", compression=top_k)


def test_what_auto_picks_is_shown_with_the_bytes_that_are_exchanged() -> None:
    keys = {"collective": "auto", "workload": {"kind": "synthetic", "layers": ["4MiB"]}, "link": {"rate": "1gbit"}}
    assert "auto picks ring for 4MiB\n" in rendered(**keys)
    assert "auto picks recursive_doubling for 41944B\n" in rendered(compression="random_k", **keys)
    assert "auto picks" not in rendered(compression="top_k", **keys), "nothing is all-reduced"


def test_an_estimate_is_called_one() -> None:
    text = rendered(compression="threshold")
    assert "~: what threshold sends depends on the gradients; an estimate" in text
    assert "threshold: about " in text


def test_a_tree_of_switches_that_add_is_shown_and_the_jobs_that_share_one() -> None:
    tree = rendered(topology="leaf_spine", collective={"kind": "in_network", "at": "tree"})
    assert "aggregator a0 at s2 (ebpf) adds a1, a2" in tree
    assert "aggregator a2 at s1 (ebpf) adds w2, w3 for a0" in tree
    shared = rendered(
        collective={"kind": "in_network", "tenants": [{"workers": ["x0"], "num_slots": 32}]}, hosts={"x0": {"at": "s0"}}
    )
    assert "a0: also job 1 of x0: 1MiB at a time in slots 128 to 159" in shared
    assert "~: other jobs of the switch put bytes there" in shared


def test_what_servers_that_do_not_wait_mean_for_the_learning_rate_is_said() -> None:
    asynchronous = rendered(collective="parameter_server", synchronisation="asynchronous", fusion="none", workers=8)
    assert "8 steps where others make one" in asynchronous
    assert "divide workload.learning_rate by 8" in asynchronous
    assert "learning_rate by" not in rendered(collective="parameter_server")


def test_a_compressor_s_pattern_is_shown_by_bucket() -> None:
    text = rendered(workers=8, compression="int8")
    assert "int8: in two phases, each worker averages a shard and codes its mean again (1262120B, 1153KiB)" in text
    assert "int8: every worker gathers all payloads (5632B)" in text
    assert "fp16: payloads are added up on the way" in rendered(compression="fp16")
    assert "added up on the way" not in rendered()


def test_workers_that_are_held_to_their_share_of_cores_are_shown_with_it() -> None:
    keys = {"workload": "synthetic", "workers": 2, "dilation": 8, "hosts": {"w1": {"cpu": 2}}}
    text = rendered(host_cost="real", **keys)
    assert "w0: synthetic worker, rank 0, held to 0.125 cores\n" in text
    assert "w1: synthetic worker, rank 1, held to 0.25 cores\n" in text
    assert "held to" not in rendered(workload="synthetic", workers=2, dilation=8)

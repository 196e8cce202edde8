"""What the gradients ask of the collective, and what is refused."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.experiment.fusion.base import shapes_of
from testbed.plan.buckets import exchanges_of_layers, scaled
from testbed.plan.plan import Plan, make_plan
from transports.compression.base import COMPRESSORS, Exchange


def plan(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", **keys}))


def test_gradients_lie_in_buckets_in_their_order() -> None:
    shapes = [(1, 1), (5,), (4,), (2, 3)]
    assert list(shapes_of(shapes, [6, 10])) == [[(1, 1), (5,)], [(4,), (2, 3)]]


def test_without_compression_every_bucket_is_one_all_reduce() -> None:
    made = plan()
    assert made.exchanges == tuple(Exchange("all_reduce", count, 4) for count in made.buckets)
    assert sum(made.traffic.values()) == made.uncompressed_bytes
    assert made.prediction.payload_bytes == made.prediction.gradient_bytes


@pytest.mark.parametrize(
    ("compression", "share"),
    [("fp16", 0.5), ("divide", 0.1), ("random_k", 0.01), ("thc", 0.25), ({"kind": "divide", "by": 2}, 0.5)],
)
def test_links_carry_the_share_of_a_summed_compressor(compression: Any, share: float) -> None:
    made, without = plan(compression=compression), plan()
    for compressed, direction in zip(made.directions, without.directions, strict=True):
        assert compressed.expected_bytes is not None
        assert direction.expected_bytes is not None
        assert compressed.expected_bytes == pytest.approx(share * direction.expected_bytes, rel=0.05)
    assert made.prediction.predicted_s < 1.1 * share * without.prediction.predicted_s + 0.01
    assert made.uncompressed_bytes == without.uncompressed_bytes


@pytest.mark.parametrize("workers", [2, 8])
def test_gathered_payloads_go_to_everybody(workers: int) -> None:
    """Each of N workers receives N - 1 payloads, where a ring of the whole carries 2 (N - 1) / N gradients."""
    made, without = (plan(workers=workers, compression=kind) for kind in ("top_k", "none"))
    share = 0.02 * workers / 2
    assert sum(made.traffic.values()) == pytest.approx(share * made.uncompressed_bytes, rel=0.1)
    assert made.prediction.bound_s == pytest.approx(share * without.prediction.bound_s, rel=0.05)
    payload = COMPRESSORS.parse("top_k").payload_bytes([(count,) for count in made.buckets[:1]], workers)
    assert made.exchanges[0] == Exchange("all_gather", workers * (payload or 0), 1)


def test_low_rank_factors_need_the_parameters_shapes() -> None:
    made = plan(compression={"kind": "powersgd", "rank": 2})
    assert len(made.exchanges) == 2 * len(made.buckets)
    assert made.prediction.payload_bytes < 0.05 * made.prediction.gradient_bytes


def test_what_depends_on_the_gradients_is_an_estimate() -> None:
    made = plan(compression="dgc", workload={"kind": "training", "momentum": 0})
    assert all(direction.expected_bytes is None for direction in made.directions)
    assert all(direction.balanced_bytes > 0 for direction in made.directions)
    assert [operation for operation, *_ in made.exchanges[:2]] == ["all_gather", "all_gather"]
    found = scaled(made.exchanges, payload_bytes=2 * made.prediction.payload_bytes, num_workers=4)
    assert found[0] == made.exchanges[0]
    assert found[1].num_elements == pytest.approx(2 * made.exchanges[1].num_elements, rel=0.01)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"compression": "fp16", "stack": "gloo"}, "stack gloo brings its own"),
        ({"compression": "dgc"}, "set workload.momentum to 0 and compression.momentum"),
        ({"compression": "int8", "workload": {"kind": "training", "verify_gradients": True}}, "verify_gradients"),
        ({"compression": "fp16", "workload": "allreduce"}, "say it in `stacks`"),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_fix(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        plan(**keys)


def test_a_wrong_option_names_its_path() -> None:
    with pytest.raises(SpecError, match=r"compression\.ratio: a ratio is above 0 and at most 1"):
        validate({"name": "x", "compression": {"kind": "top_k", "ratio": 2}})
    with pytest.raises(SpecError, match=r"compression: 'zip' is not a compression; allowed: bf16, demo, dgc"):
        validate({"name": "x", "compression": "zip"})


def test_priority_agrees_before_each_part_and_sends_the_same_bytes() -> None:
    made, without = plan(fusion={"kind": "priority", "bytes": "200kB"}), plan(fusion="none")
    assert sum(made.buckets) == sum(without.buckets)
    assert all(4 * count <= 200_000 for count in made.buckets)
    num_items = len(made.buckets)
    assert made.exchanges[::2] == (Exchange("all_to_all", 4 * -(-num_items // 8), 1, of_gradients=False),) * num_items
    assert made.prediction.payload_bytes == made.prediction.gradient_bytes
    assert sum(made.traffic.values()) == pytest.approx(sum(without.traffic.values()), rel=0.01)


def test_what_is_summed_on_its_way_is_settled_before_the_next_agreement() -> None:
    keys = {"fusion": {"kind": "priority", "bytes": "200kB"}, "collective": "in_network"}
    made, settling = plan(**keys), Exchange("all_to_all", 4, 8, of_gradients=False)
    assert made.exchanges[::3] == (settling,) * len(made.buckets)
    assert {each.operation for each in made.exchanges[2::3]} == {"all_reduce"}
    assert settling not in plan(**keys, compression="top_k").exchanges, "nothing is summed"
    assert settling not in plan(collective="in_network").exchanges, "one sum after the other needs none"


def test_what_is_joined_by_time_is_planned_as_one_decision_with_one_agreement() -> None:
    workload = {"kind": "synthetic", "layers": ["64KiB"] * 6}
    made = plan(fusion={"kind": "time", "bytes": "128KiB"}, workload=workload)
    assert [each.of_gradients for each in made.exchanges] == [False, True, True, True]
    assert [each.of_gradients for each in exchanges_of_layers(made.experiment)] == [False, True] * 6


@pytest.mark.parametrize("register_bits", [8, 16])
def test_integers_and_a_maximum_are_planned_around_the_ring(register_bits: int) -> None:
    compression = {"kind": "thc", "register_bits": register_bits}
    switch, ring = (plan(collective=kind, compression=compression) for kind in ("in_network", "ring"))
    assert switch.traffic == ring.traffic
    assert switch.prediction.predicted_s == pytest.approx(ring.prediction.predicted_s)
    assert not any(each.sums_floats for each in switch.exchanges)


def test_layers_are_merged_where_starting_costs_more_than_waiting() -> None:
    near = plan(fusion={"kind": "merged", "backward": "200ms"}, link={"rate": "1gbit"})
    far = plan(fusion={"kind": "merged", "backward": "200ms"}, link={"rate": "1gbit", "delay": "20ms"})
    assert len(far.buckets) < len(near.buckets)
    assert sum(far.buckets) == sum(near.buckets)


def test_parts_of_layers_are_compressed_as_vectors_and_whole_layers_as_they_are() -> None:
    made = plan(fusion={"kind": "priority", "bytes": "1MiB"}, compression={"kind": "powersgd", "rank": 2})
    parts = plan(fusion={"kind": "priority", "bytes": "200kB"}, compression={"kind": "powersgd", "rank": 2})
    assert made.prediction.payload_bytes < 0.05 * made.prediction.gradient_bytes
    assert parts.prediction.payload_bytes > made.prediction.payload_bytes


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"fusion": "priority", "stack": "gloo"}, "fusion: priority goes through an engine on our own transports"),
        (
            {"fusion": "priority", "workload": {"kind": "training", "verify_gradients": True}},
            "fusion: priority steps each layer in the",
        ),
    ],
)
def test_what_an_engine_cannot_do_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as raised:
        plan(**keys)
    assert words in str(raised.value)


def test_what_is_gathered_among_eight_goes_in_two_phases_and_the_plan_says_so() -> None:
    made, gathered, without = (
        plan(workers=8, compression=compression)
        for compression in ("int8", {"kind": "int8", "exchange": "gather"}, "none")
    )
    assert set(gathered.patterns) == {"gather"}
    assert set(without.patterns) == {"reduce"}
    assert "two_phase" in made.patterns
    assert made.to_json()["patterns"] == list(made.patterns)
    assert sum(made.traffic.values()) == pytest.approx(0.255 * made.uncompressed_bytes, rel=0.01)
    assert sum(gathered.traffic.values()) > made.uncompressed_bytes
    assert made.prediction.predicted_s < 0.26 * without.prediction.predicted_s
    assert made.prediction.bound_s < 0.26 * without.prediction.bound_s
    assert made.prediction.payload_bytes == pytest.approx(9 / 32 * made.prediction.gradient_bytes, rel=0.02)


def test_measured_iterations_all_send_the_same() -> None:
    compression = {"kind": "powersgd", "start": 5}
    with pytest.raises(SpecError, match=r"set workload\.warmup to 5 or more"):
        plan(compression=compression, workload={"kind": "training", "warmup": 4})
    made = plan(compression=compression, workload={"kind": "training", "warmup": 5})
    assert made.exchanges == plan(compression="powersgd").exchanges

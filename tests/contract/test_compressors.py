"""What every compressor promises, whatever its name: its bytes, bias, contraction and sums, over any channel."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lockstep import Workers
from tests.threads import run_communicators
from transports.compression._sharded import Sharded
from transports.compression.base import COMPRESSORS, AllReduce, AllToAll, Compressor, Piece
from transports.gradients import GradientCompression

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dgc": [{"ratio": 0.1, "clip_norm": 0.1, "nesterov": True}],
    "demo": [{"side": 8, "kept": 3, "sign": False}],
    "divide": [{"by": 3.0}],
    "fp8": [{"error_feedback": True}],
    "int8": [{"block": 32, "error_feedback": True}],
    "natural": [{"error_feedback": True}],
    "onebit": [{"block": 8}, {"error_feedback": False}],
    "powersgd": [{"rank": 1, "start": 2}, {"rank": 2, "error_feedback": False}, {"min_compression_rate": 4.0}],
    "qsgd": [{"bits": 2}, {"bits": 8, "block": 64}, {"error_feedback": True}],
    "random_k": [{"ratio": 0.1}, {"ratio": 0.1, "error_feedback": False}],
    "signsgd": [{"scaled": True}, {"scaled": True, "error_feedback": True}],
    "signum": [{"scaled": True, "momentum": 0.5}],
    "sparseloco": [{"side": 8, "kept": 3}, {"side": 5, "kept": 30, "bits": 8}],
    "terngrad": [{"clip": None}, {"clip": None, "error_feedback": True}],
    "thc": [{"register_bits": 16}, {"error_feedback": True}],
    "threshold": [{"threshold": 0.01}, {"threshold": 0.02, "error_feedback": False}],
    "top_k": [{"ratio": 0.1}, {"ratio": 0.1, "error_feedback": False}],
}
"""Beside the defaults."""
SHAPES = ((5, 7), (3,), (2, 3, 4), (1,), (300,), (20, 30))


def compressors() -> Iterator[Compressor]:
    for kind in COMPRESSORS.kinds():
        for options in [{}, *OPTIONS.get(kind, [])]:
            yield (compressor := COMPRESSORS.parse({"kind": kind, **options}))
            if isinstance(compressor, Sharded) and (not options or "error_feedback" in options):
                yield in_two_phases(compressor)


def in_two_phases(compressor: Compressor) -> Compressor:
    return compressor.model_copy(update={"exchange": "two_phase", "slices": 2})


def named(chosen: Iterable[Compressor]) -> list[Any]:
    return [pytest.param(compressor, id=f"{compressor.kind} {compressor}") for compressor in chosen]


EVERY = named(compressors())
FEEDING_BACK = named(compressor for compressor in compressors() if compressor.error_feedback)
CODING_ALONE = [
    compressor
    for compressor in compressors()
    # One worker by itself never goes in two phases.
    if not compressor.error_feedback and getattr(compressor, "exchange", "gather") != "two_phase"
]
UNBIASED = named(compressor for compressor in CODING_ALONE if compressor.unbiased)
CONTRACTING = named(compressor for compressor in CODING_ALONE if compressor.contraction(100))
AVERAGING = named(
    compressor
    for compressor in compressors()
    # What-if numbers are wrong, a vote is no mean, a shared scale depends on the others, and so does a shard's mean.
    if not compressor.remembers
    and compressor.kind not in {"divide", "signsgd", "thc"}
    and getattr(compressor, "exchange", "gather") != "two_phase"
)


def gradients(num_workers: int, shapes: tuple[tuple[int, ...], ...] = SHAPES, seed: int = 1) -> list[torch.Tensor]:
    generator = np.random.default_rng(seed)
    num_elements = sum(int(np.prod(shape)) for shape in shapes)
    return [
        torch.from_numpy(generator.standard_normal(num_elements, dtype=np.float32) * 1e-2) for _ in range(num_workers)
    ]


def layout_of(shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Piece]:
    return [Piece(number, shape) for number, shape in enumerate(shapes)]


def without_feedback(compressor: Compressor) -> Compressor:
    return compressor.model_copy(update={"error_feedback": False})


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("compressor", EVERY)
@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("shapes", [SHAPES, ((1,),), ((0,),), ((8,),), ((1025,),), ((0,), (3, 3))], ids=str)
def test_bytes_are_those_declared_and_all_get_the_same(
    compressor: Compressor, num_workers: int, shapes: tuple[tuple[int, ...], ...]
) -> None:
    workers = Workers(compressor, num_workers)
    for seed in range(3):
        results = workers.mean(gradients(num_workers, shapes, seed), layout_of(shapes))
        for result in results:
            assert torch.isfinite(result).all()
            assert torch.equal(result, results[0]) or not compressor.replicas_agree
    if results[0].numel() and (declared := compressor.payload_bytes(shapes, num_workers)) is not None:
        assert workers.payload_bytes() == declared


@pytest.mark.parametrize("compressor", EVERY)
def test_requests_are_those_declared(compressor: Compressor) -> None:
    workers = Workers(compressor, 3)
    for _ in range(1 + compressor.settled_after):
        workers.mean(gradients(3), layout_of())
    asked = []
    for request in workers.requests:
        if isinstance(request, AllReduce):
            asked.append(("all_reduce", request.tensor.numel(), request.tensor.element_size()))
        elif isinstance(request, AllToAll):
            asked.append(("all_to_all", request.payloads.size, 1))
        else:
            asked += [("all_gather", 3, 8)] * request.varying + [("all_gather", 3 * len(request.payload), 1)]
    declared = [tuple(exchange)[:3] for exchange in compressor.exchanges(SHAPES, 3)]
    if compressor.data_dependent:
        assert [kind for kind, *_ in asked] == [kind for kind, *_ in declared]
    else:
        assert asked == declared
    assert all((kind == "all_reduce") == compressor.summable for kind, *_ in asked)


@pytest.mark.parametrize("compressor", UNBIASED)
def test_unbiased_compressors_are_right_on_average(compressor: Compressor) -> None:
    num_repetitions = 4000
    (values,) = gradients(1, ((40,),))
    workers = Workers(compressor, 1)
    decoded = torch.stack([workers.mean([values])[0].double() for _ in range(num_repetitions)])
    deviation = decoded.std(0) / num_repetitions**0.5
    assert ((decoded.mean(0) - values).abs() <= 5 * deviation + 1e-4 * values.abs().max()).all()
    variance = compressor.variance(40)
    if variance is not None:
        squared = float((decoded - values).square().sum(1).mean())
        assert squared <= 1.05 * variance * float(values.double().square().sum()) + 1e-12


@pytest.mark.parametrize("compressor", CONTRACTING)
@given(data=st.data())
@settings(max_examples=25)
def test_contractions_contract(compressor: Compressor, data: st.DataObject) -> None:
    number = st.one_of(st.floats(2.0**-12, 1e4, width=32), st.floats(-1e4, -(2.0**-12), width=32), st.just(0.0))
    values = torch.tensor(data.draw(st.lists(number, min_size=1, max_size=700)))
    num_draws, slack = (300, 1.5) if compressor.unbiased else (1, 1.001)
    workers = Workers(compressor, 1)
    left = torch.stack([(workers.mean([values])[0] - values).double().square().sum() for _ in range(num_draws)])
    contraction = compressor.contraction(len(values))
    assert contraction is not None
    assert float(left.mean()) <= (1 - contraction) * slack * float(values.double().square().sum()) + 1e-12


@pytest.mark.parametrize("compressor", FEEDING_BACK)
@pytest.mark.parametrize("num_workers", [1, 3])
def test_what_is_sent_and_what_is_kept_add_up_to_all_gradients(compressor: Compressor, num_workers: int) -> None:
    """Across a change of buckets: half of the exchanges see the parameters in another order."""
    workers = Workers(compressor, num_workers)
    order = [4, 0, 5, 2, 1, 3]
    layout = layout_of()
    other = [layout[number] for number in order]
    sent = torch.zeros(num_workers and gradients(1)[0].numel(), dtype=torch.float64)
    given_in = torch.zeros_like(sent)
    for round_ in range(8):
        values = gradients(num_workers, seed=round_)
        given_in += torch.stack(values).double().mean(0)
        if round_ % 3 == 2:
            results = workers.mean([_reordered(each, layout, other) for each in values], other)
            results = [_reordered(each, other, layout) for each in results]
        else:
            results = workers.mean(values, layout)
        sent += results[0].double()
    kept = torch.stack(workers.errors(layout)).double().mean(0)
    tolerance = 2e-3 if compressor.kind in {"fp16", "bf16"} else 1e-5  # these also round while they add
    assert error(sent + kept, given_in) < tolerance


def _reordered(values: torch.Tensor, layout: list[Piece], other: list[Piece]) -> torch.Tensor:
    lengths = [int(np.prod(piece.shape)) for piece in layout]
    parts = dict(zip([piece.key for piece in layout], values.split(lengths), strict=True))
    return torch.cat([parts[piece.key] for piece in other])


@pytest.mark.parametrize("compressor", FEEDING_BACK)
def test_the_error_fed_back_stays_bounded(compressor: Compressor) -> None:
    workers = Workers(compressor, 2)
    norms = []
    for round_ in range(600):
        workers.mean(gradients(2, ((12, 10),), seed=round_), [Piece(0, (12, 10))])
        norms.append(float(workers.errors([Piece(0, (12, 10))])[0].norm()))
    assert np.mean(norms[400:]) < 1.3 * np.mean(norms[200:400]) + 1e-9


@pytest.mark.parametrize("compressor", AVERAGING)
def test_the_result_is_the_mean_of_what_each_would_decode_alone(compressor: Compressor) -> None:
    """For summable ones this is decode(sum) == sum(decode). Random draws are those of the rank in both."""
    values = gradients(3)
    (together, *_) = Workers(compressor, 3).mean(values, layout_of())
    alone = []
    for rank in range(3):
        member = Workers(compressor, 1)
        member.members = [GradientCompression(compressor, rank=rank, num_workers=1)]
        alone.append(member.mean([values[rank]], layout_of())[0].double())
    tolerance = 1e-2 if compressor.kind in {"fp16", "bf16"} else 1e-5
    assert error(together, torch.stack(alone).mean(0)) < tolerance


@pytest.mark.parametrize("compressor", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_type_of_gradient_is_taken(compressor: Compressor, dtype: torch.dtype) -> None:
    values = [each.to(dtype) for each in gradients(2)]
    results = Workers(compressor, 2).mean(values, layout_of())
    wide = Workers(compressor, 2).mean([each.float() for each in values], layout_of())
    assert results[0].dtype == dtype
    assert torch.equal(results[0], wide[0].to(dtype))


@pytest.mark.parametrize("compressor", EVERY)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_overflow_shows_or_stays_out_and_spoils_nothing_later(compressor: Compressor, value: float) -> None:
    """What is sent of a gradient that is not finite arrives so, except as a sign; and never comes back as an error."""
    workers = Workers(compressor, 2)
    spoiled = gradients(2)
    spoiled[1][::2] = value
    (result, _) = workers.mean(spoiled, layout_of())
    assert not torch.isfinite(result).all() or compressor.kind in {"signsgd", "signum"}
    for seed in range(2):
        (result, _) = workers.mean(gradients(2, seed=seed), layout_of())
    assert torch.isfinite(result).all()


@pytest.mark.parametrize("compressor", EVERY)
def test_the_same_seed_draws_the_same(compressor: Compressor) -> None:
    first, second = (Workers(compressor, 2, seed=7).mean(gradients(2), layout_of()) for _ in range(2))
    assert torch.equal(first[0], second[0])


@pytest.mark.parametrize("compressor", EVERY)
def test_over_a_channel_it_is_the_same(compressor: Compressor) -> None:
    values = gradients(3)
    expected = Workers(compressor, 3).mean(values, layout_of())

    def exchange(communicator: Any) -> torch.Tensor:
        own = GradientCompression(compressor, rank=communicator.rank, num_workers=3)
        buffer = values[communicator.rank].clone()
        size_bytes = buffer.nbytes
        communicator.submit(
            "all_reduce", lambda transport: own.reduce(transport, buffer, layout_of()), size_bytes
        ).wait(10)
        return buffer

    for rank, found in enumerate(run_communicators(exchange, 3)):
        assert error(found, expected[rank]) < (1e-2 if compressor.kind in {"fp16", "bf16"} else 1e-4)

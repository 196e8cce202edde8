"""What every compressor promises, whatever its name: its bytes, bias, contraction and sums, over any channel; the same
mean as a hook's and in a process group, at every scale, of every type."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf, sqrt
from typing import Any, Final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lockstep import Workers
from tests.over_all import over_all
from tests.threads import run_communicators
from transports.compression._sharded import Sharded
from transports.compression.base import (
    COMPRESSORS,
    AllReduce,
    AllToAll,
    Compressor,
    Piece,
    Shape,
    require_for_group,
)
from transports.compression.thc_table import TableHomomorphic
from transports.errors import OptionError
from transports.execution.gradients import COMPRESSIBLE, GradientCompression

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dgc": [{"ratio": 0.1, "clip_norm": 0.1, "nesterov": True}],
    "demo": [{"side": 8, "kept": 3, "sign": False}],
    "divide": [{"by": 3.0}],
    "fp16": [{"error_feedback": True}],
    "bf16": [{"error_feedback": True}],
    "fp8": [{"block": 32}, {"error_feedback": True}],
    "int8": [{"block": 32, "error_feedback": True}],
    "natural": [{"error_feedback": True}],
    "onebit": [{"block": 8}, {"error_feedback": False}],
    "onebit_adam": [
        {"start": 1, "exchange": "gather"},
        {"exchange": "two_phase", "slices": 2, "bias_correction": False},
    ],
    "powersgd": [
        {"rank": 1, "start": 2},
        {"rank": 2, "error_feedback": False},
        {"min_compression_rate": 4.0},
        {"rank": 1, "batch_same_shapes": True},
    ],
    "qsgd": [{"bits": 2}, {"bits": 8, "block": 64}, {"norm": "euclidean"}, {"error_feedback": True}],
    "random_k": [{"ratio": 0.1}, {"ratio": 0.1, "error_feedback": False}],
    "signsgd": [{"scaled": True}, {"scaled": True, "error_feedback": True}],
    "signum": [{"scaled": True, "momentum": 0.5}],
    "sparseloco": [{"side": 8, "kept": 3}, {"side": 5, "kept": 30, "bits": 8}],
    "terngrad": [{"clip": None}, {"clip": None, "error_feedback": True}],
    "thc": [{"register_bits": 16}, {"error_feedback": True}],
    "thc_table": [{"error_feedback": False}, {"bits": 2, "granularity": 7, "clip": 0.1}, {"granularity": 200}],
    "threshold": [{"threshold": 0.01}, {"threshold": 0.02, "error_feedback": False}],
    "top_k": [{"ratio": 0.1}, {"ratio": 0.1, "error_feedback": False}],
}
"""Beside the defaults."""
SHAPES = ((5, 7), (3,), (2, 3, 4), (1,), (300,), (20, 15), (20, 15))


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
    and compressor.kind not in {"divide", "signsgd", "thc", "thc_table"}
    and getattr(compressor, "exchange", "gather") != "two_phase"
)


def in_group(compressor: Compressor) -> bool:
    try:
        require_for_group(compressor)
    except OptionError:
        return False
    return True


IN_GROUP = named(compressor for compressor in compressors() if in_group(compressor))
HOMOGENEOUS = named(compressor for compressor in compressors() if compressor.homogeneous)


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
@over_all("num_workers", [1, 2, 5])
@over_all("shapes", [SHAPES, ((1,),), ((0,),), ((8,),), ((1025,),), ((0,), (3, 3))])
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
    requested = []
    for request in workers.requests:
        if isinstance(request, AllReduce):
            requested.append(("all_reduce", request.tensor.numel(), request.tensor.element_size()))
        elif isinstance(request, AllToAll):
            requested.append(("all_to_all", request.payloads.size, 1))
        else:
            requested += [("all_gather", 3, 8)] * request.varying + [("all_gather", 3 * len(request.payload), 1)]
    declared = [tuple(exchange)[:3] for exchange in compressor.exchanges(SHAPES, 3)]
    if compressor.data_dependent:
        assert [kind for kind, *_ in requested] == [kind for kind, *_ in declared]
    else:
        assert requested == declared
    assert all((kind == "all_reduce") == compressor.summable for kind, *_ in requested)
    assert [each.sums_floats for each in compressor.exchanges(SHAPES, 3) if each.operation == "all_reduce"] == [
        request.tensor.is_floating_point() and request.operation == "sum"
        for request in workers.requests
        if isinstance(request, AllReduce)
    ]


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
@given(
    exponents=st.one_of(
        st.tuples(st.integers(-149, 127), st.integers(-149, 127)),
        st.sampled_from([(-149, -120), (-118, -100), (-30, -8), (-10, 10), (100, 127)]),
    ).map(sorted),
    num_elements=st.integers(1, 700),
    share_of_zeros=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=25)
def test_contractions_contract(
    compressor: Compressor, exponents: list[int], num_elements: int, share_of_zeros: float, seed: int
) -> None:
    """Over the whole of float32 as far as the stated range goes, subnormal numbers included."""
    floor, largest = compressor.valid_range
    low, high = exponents
    generator = np.random.default_rng(seed)
    sizes = np.exp2(generator.uniform(low, high, num_elements)) * (generator.random(num_elements) >= share_of_zeros)
    numbers = np.minimum(sizes, largest) * generator.choice([-1, 1], num_elements)
    values = torch.from_numpy(numbers.astype(np.float32))
    num_draws, slack = (300, 1.5) if compressor.unbiased else (1, 1.001)
    workers = Workers(compressor, 1)
    left = torch.stack([(workers.mean([values])[0].double() - values).square().sum() for _ in range(num_draws)])
    contraction = compressor.contraction(num_elements)
    assert contraction is not None
    allowed = (1 - contraction) * slack * float(values.double().square().sum())
    assert float(left.mean()) <= (sqrt(allowed) + 1.001 * floor * sqrt(num_elements)) ** 2


@pytest.mark.parametrize("compressor", FEEDING_BACK)
@over_all("num_workers", [1, 2, 3, 8])
@over_all("scale", [1e-30, 1.0, 1e30])
def test_what_is_sent_and_what_is_kept_add_up_to_all_gradients(
    compressor: Compressor, num_workers: int, scale: float
) -> None:
    """Across a change of buckets: half of the exchanges see the parameters in another order."""
    workers = Workers(compressor, num_workers)
    order = [4, 0, 6, 2, 5, 1, 3]
    layout = layout_of()
    other = [layout[number] for number in order]
    sent = torch.zeros(num_workers and gradients(1)[0].numel(), dtype=torch.float64)
    given_in = torch.zeros_like(sent)
    for round_ in range(8):
        values = [each * scale for each in gradients(num_workers, seed=round_)]
        given_in += torch.stack(values).double().mean(0)
        if round_ % 3 == 2:
            results = workers.mean([_reordered(each, layout, other) for each in values], other)
            results = [_reordered(each, other, layout) for each in results]
        else:
            results = workers.mean(values, layout)
        sent += results[0].double()
    kept = torch.stack(workers.errors(layout)).double().mean(0)
    tolerance = {"fp16": 2e-3, "bf16": 2e-2}.get(compressor.kind, 1e-5)  # these also round while they add
    assert error(sent + kept, given_in) < tolerance


def _reordered(values: torch.Tensor, layout: list[Piece], other: list[Piece]) -> torch.Tensor:
    lengths = [int(np.prod(piece.shape)) for piece in layout]
    parts = dict(zip([piece.key for piece in layout], values.split(lengths), strict=True))
    return torch.cat([parts[piece.key] for piece in other])


@pytest.mark.parametrize("compressor", FEEDING_BACK)
def test_the_error_fed_back_stays_bounded(compressor: Compressor) -> None:
    workers = Workers(compressor, 2)
    norms = []
    for round_ in range(300):
        workers.mean(gradients(2, ((12, 10),), seed=round_), [Piece(0, (12, 10))])
        norms.append(float(workers.errors([Piece(0, (12, 10))])[0].norm()))
    assert np.mean(norms[200:]) < 1.3 * np.mean(norms[100:200]) + 1e-9


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
@over_all("dtype", COMPRESSIBLE)
def test_every_type_of_gradient_is_taken(compressor: Compressor, dtype: torch.dtype) -> None:
    """As float32, rounded at the end; or in its own type, when the bytes are fewer."""
    values = [each.to(dtype) for each in gradients(2)]
    workers = Workers(compressor, 2)
    results = workers.mean(values, layout_of())
    wide = Workers(compressor, 2)
    expected = wide.mean([each.float() for each in values], layout_of())
    assert results[0].dtype == dtype
    assert error(results[0], expected[0].to(dtype)) <= (torch.finfo(dtype).eps if compressor.own_type else 0)
    assert workers.payload_bytes() == wide.payload_bytes() * (dtype.itemsize if compressor.own_type else 4) / 4


@pytest.mark.parametrize("compressor", EVERY)
def test_float64_is_exact_or_refused(compressor: Compressor) -> None:
    values = [torch.full((8,), 1 + 2.0**-50, dtype=torch.float64)] * 2
    if compressor.own_type:
        assert torch.equal(Workers(compressor, 2).mean(values)[0], values[0])
    else:
        with pytest.raises(
            OptionError, match=f"compression {compressor.kind}: a gradient is float64.*allowed: float32"
        ):
            Workers(compressor, 2).mean(values)


@pytest.mark.parametrize("compressor", EVERY)
@over_all("value", [float("nan"), inf, -inf])
@over_all("position", [0, 62, 962])
def test_what_is_not_finite_shows_and_spoils_nothing_later(compressor: Compressor, value: float, position: int) -> None:
    """One element of one worker is enough for every worker's result, as gradient scalers need it."""
    workers = Workers(compressor, 2)
    spoiled = gradients(2)
    spoiled[1][position] = value
    for rank, result in enumerate(workers.mean(spoiled, layout_of())):
        assert not torch.isfinite(result).all() or (not compressor.replicas_agree and rank == 0)
    for seed in range(2):
        (result, _) = workers.mean(gradients(2, seed=seed), layout_of())
        assert torch.isfinite(result).all()


@pytest.mark.parametrize("compressor", EVERY)
@over_all("size", [1e35, 3e38])
def test_what_is_finite_stays_finite(compressor: Compressor, size: float) -> None:
    """Where large values have no code they are sent as smaller ones."""
    workers = Workers(compressor, 2)
    for round_ in range(3):
        signs = [each.sign() for each in gradients(2, seed=round_)]
        (result, _) = workers.mean([size * each for each in signs], layout_of())
        beyond = compressor.overflows and not compressor.error_feedback and size > compressor.valid_range.largest
        assert torch.isfinite(result).all() or beyond
        if round_ == 0 and beyond:
            assert torch.isinf(result).any()
        if compressor.remembers:
            return  # what was kept and what comes is more than float32 has room for


SCALES: Final = (2.0**-100, 2.0**-20, 2.0**20, 2.0**100)
"""Besides 1: powers of two, by which floating-point numbers are multiplied without rounding."""


@pytest.mark.parametrize("compressor", HOMOGENEOUS)
@over_all("scale", SCALES)
def test_the_scale_of_gradients_changes_that_of_results_and_nothing_else(compressor: Compressor, scale: float) -> None:
    """Over several rounds, as far as the stated range goes; bit for bit but where bits end."""
    floor, largest = compressor.valid_range
    plain, scaled = Workers(compressor, 2), Workers(compressor, 2)
    for round_ in range(3):
        values = gradients(2, seed=round_)
        if not 1e3 * floor < 1e-2 * scale < largest / 1e3:
            return
        expected = plain.mean(values, layout_of())[0].double() * scale
        found = scaled.mean([each * scale for each in values], layout_of())[0].double()
        assert ((found - expected).abs() <= floor * (scale < 1)).all()


@pytest.mark.parametrize("compressor", IN_GROUP)
@over_all("num_workers", [2, 3, 4, 8])
@over_all("scale", [1e-30, 1e-6, 1.0, 1e30])
def test_hook_and_group_agree(compressor: Compressor, num_workers: int, scale: float) -> None:
    """The hook sees gradients, a group their Nth part, and the sum is requested: bit for bit where N is a power of
    two, for that division is exact. And what it makes of a mean of undivided ones is the same."""
    hook, group, averaging = (Workers(compressor, num_workers) for _ in range(3))
    for round_ in range(2):
        values = [scale * 1e2 * each for each in gradients(num_workers, seed=round_)]
        (by_hook, *_) = hook.mean(values)
        (by_group, *_) = group.sum([each / num_workers for each in values])
        (averaged, *_) = averaging.mean(values)
        assert torch.allclose(averaged, by_hook, rtol=0, atol=0, equal_nan=True)
        if num_workers != 3:
            assert torch.allclose(by_group, by_hook, rtol=0, atol=0, equal_nan=True)
        elif not compressor.unbiased and torch.isfinite(by_hook).all() and by_hook.any():
            # With random draws another rounding may be another level.
            assert error(by_group, by_hook) < (1e-2 if compressor.kind in {"fp16", "bf16", "fp8", "int8"} else 1e-5)


@pytest.mark.parametrize("compressor", named(each for each in compressors() if not each.homogeneous))
def test_what_depends_on_the_unit_of_gradients_is_refused_in_a_group(compressor: Compressor) -> None:
    with pytest.raises(OptionError, match=r"ddp_hook\.register"):
        require_for_group(compressor)


INPUTS: Final = ("normal", "zeros", "constant", "one element")


def _inputs(kind: str, num_workers: int, scale: float) -> tuple[list[torch.Tensor], tuple[Shape, ...]]:
    if kind == "normal":
        return [scale * 1e2 * each for each in gradients(num_workers)], SHAPES
    shape = (1,) if kind == "one element" else (12, 30)
    value = 0.0 if kind == "zeros" else scale
    return [torch.full((int(np.prod(shape)),), value * (1 + rank / 8)) for rank in range(num_workers)], (shape,)


def _allowed_error(compressor: Compressor, values: Sequence[torch.Tensor], shapes: Sequence[Shape]) -> float | None:
    """Of the first mean, in the L2 norm; None where nothing is stated of a single one."""
    floor, largest = compressor.valid_range
    num_workers, num_elements = len(values), len(values[0])
    if max(float(each.abs().max()) for each in values) > largest:
        return None
    norms = torch.stack([each.double().norm() for each in values])
    allowed = num_workers * floor * sqrt(num_elements) + num_workers * 2.0**-22 * float(norms.mean())
    contraction, variance = compressor.contraction(num_elements), compressor.variance(num_elements)
    again = compressor.pattern(shapes, num_workers) == "two_phase"  # the mean is coded as its parts were
    allowed *= 1 + again
    if compressor.kind in {"fp16", "bf16"}:  # they also round while they add
        return allowed + num_workers * (2.0**-11 if compressor.kind == "fp16" else 2.0**-8) * float(norms.mean())
    if isinstance(compressor, TableHomomorphic):  # all may be clipped; what is not, errs by less than a gap
        return allowed + float(norms.mean()) + compressor.resolution * float(norms.norm())
    if compressor.error_feedback:  # of it a damped compressor is a contraction
        assert compressor.damping(num_elements) is not None
        return allowed + (1.5 + again * 1.5 * (1 + 1.5)) * float(norms.mean())
    if contraction is not None and not compressor.unbiased:
        lost = sqrt(1 - contraction)
        return allowed + (lost + again * lost * (1 + lost)) * float(norms.mean())
    if variance is not None:  # of independent draws; four times the deviation
        once = 4 * sqrt(variance) * float(norms.norm()) / num_workers
        return allowed + once + again * 4 * sqrt(variance) * (once + float(norms.mean()))
    if compressor.kind == "terngrad":  # clipped elements too are sent as 0 or 2.5 deviations
        return allowed + 3.5 * float(norms.mean())
    if compressor.kind == "thc":
        return allowed + sqrt(2 * num_elements) * float(norms.max()) / compressor.num_levels(num_workers)  # type: ignore[attr-defined]
    return None


@pytest.mark.parametrize("compressor", EVERY)
@over_all("num_workers", [2, 4, 8])
@over_all("kind", INPUTS)
def test_the_mean_is_within_its_stated_bound(compressor: Compressor, num_workers: int, kind: str) -> None:
    """By the hook and, where that is allowed, in the group; at every scale; among two of every type, for what becomes
    of a type does not depend on how many have it."""
    for scale in (1e-30, 1.0, 1e30):
        for dtype in COMPRESSIBLE if num_workers == 2 else (torch.float32,):
            values, shapes = _inputs(kind, num_workers, scale)
            values = [each.to(dtype) for each in values]
            if not all(torch.isfinite(each).all() for each in values):
                continue  # float16 ends at 65504
            allowed = _allowed_error(compressor, values, shapes)
            results = Workers(compressor, num_workers).mean(values, layout_of(shapes))
            expected = torch.stack(values).double().mean(0)
            rounding = torch.finfo(dtype).eps * float(expected.norm()) + torch.finfo(dtype).smallest_normal
            voting = compressor.kind in {"signsgd", "signum"}  # where zero counts as positive
            if kind == "zeros" and not voting:
                assert not results[0].any()
            if allowed is not None:
                assert float((results[0].double() - expected).norm()) <= allowed + rounding
            if voting and not compressor.homogeneous:
                votes = sum((2.0 * (each >= 0) - 1 for each in values), torch.zeros(len(expected)))
                assert torch.equal(results[0].double(), votes.sign().double())


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

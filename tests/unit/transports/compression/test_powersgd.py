"""Low-rank factors."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from tests.lockstep import Workers
from transports.compression import powersgd
from transports.compression.base import COMPRESSORS, Piece
from transports.compression.powersgd import PowerSgd

LAYOUT = [Piece("weight", (20, 5, 6)), Piece("bias", (20,)), Piece("small", (2, 2))]


def _gradient(seed: int, rank: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    low = torch.randn(20, rank, generator=generator) @ torch.randn(rank, 30, generator=generator)
    return torch.cat([low.flatten(), torch.randn(24, generator=generator)])


def test_a_matrix_of_low_rank_is_exact() -> None:
    (result,) = Workers({"kind": "powersgd", "rank": 2}, 1).mean([_gradient(1)], LAYOUT)
    assert torch.allclose(result, _gradient(1), atol=1e-4)


def test_vectors_and_what_would_not_shrink_travel_as_they_are() -> None:
    workers = Workers({"kind": "powersgd", "rank": 1}, 2)
    values = [_gradient(seed, rank=6) for seed in range(2)]
    (result, _) = workers.mean(values, LAYOUT)
    assert torch.allclose(result[600:], ((values[0] + values[1]) / 2)[600:])
    assert COMPRESSORS.parse({"kind": "powersgd", "rank": 1}).payload_bytes([(20, 5, 6), (20,), (2, 2)], 2) == 4 * (
        20 + 20 + 4 + 30
    )


def test_the_same_gradient_again_is_met_better() -> None:
    """The power method goes on where it was."""
    workers = Workers({"kind": "powersgd", "rank": 2, "error_feedback": False}, 1)
    gradient = _gradient(3, rank=10)
    errors = [float((workers.mean([gradient], LAYOUT)[0] - gradient).norm()) for _ in range(20)]
    assert errors[-1] < 0.99 * errors[0]


def test_a_gradient_of_zeros_does_not_stop_it() -> None:
    workers = Workers({"kind": "powersgd", "rank": 2}, 1)
    workers.mean([torch.zeros(624)], LAYOUT)
    total = sum((workers.mean([_gradient(1)], LAYOUT)[0] for _ in range(10)), torch.zeros(624))
    assert torch.allclose(total, 10 * _gradient(1), atol=1e-2)


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1.0, 1e20, 1e30])
def test_the_size_of_a_gradient_does_not_matter(scale: float) -> None:
    """Q without orthogonal columns had the square of it: 9.8 times the residual at 1e-22, NaN at 1e20."""
    workers = Workers({"kind": "powersgd", "rank": 2}, 2)
    gradient = (scale * _gradient(3, rank=4).double()).float()
    sent = torch.zeros(624, dtype=torch.float64)
    for _ in range(30):
        sent += workers.mean([gradient, gradient], LAYOUT)[0].double()
    total = 30 * gradient.double()
    kept = workers.errors(LAYOUT)[0].double()
    assert (sent + kept - total).norm() < 1e-5 * total.norm()
    assert kept.norm() < 3 * gradient.double().norm()


def test_after_zeros_it_finds_a_direction_again() -> None:
    """Also for a gradient that is zero in the first rows and columns, where factors of zero would be continued."""
    workers = Workers({"kind": "powersgd", "rank": 2, "error_feedback": False}, 1)
    layout = [Piece("weight", (20, 30))]
    workers.mean([torch.zeros(600)], layout)
    gradient = torch.zeros(20, 30)
    gradient[10:, 15:] = torch.ones(10, 15)
    for _ in range(3):
        (result,) = workers.mean([gradient.flatten()], layout)
    assert torch.allclose(result, gradient.flatten(), atol=1e-4)


def test_the_first_iterations_are_exact_whatever_buckets_there_are() -> None:
    workers = Workers({"kind": "powersgd", "rank": 1, "start": 3}, 2)
    for round_, layout in enumerate([LAYOUT, LAYOUT[::-1], LAYOUT]):
        values = [_gradient(10 * round_ + rank, rank=6) for rank in range(2)]
        assert torch.allclose(workers.mean(values, layout)[0], (values[0] + values[1]) / 2)
        assert not torch.stack(workers.errors(LAYOUT)).any()
    values = [_gradient(rank, rank=6) for rank in range(2)]
    assert not torch.allclose(workers.mean(values, LAYOUT)[0], (values[0] + values[1]) / 2, atol=0.1)


@pytest.mark.parametrize(("rank", "rate"), [(1, 1.0), (1, 2.0), (4, 1.0), (4, 2.0), (2, 6.0), (2, 6.1)])
def test_what_is_worth_factoring_is_what_torch_factors(rank: int, rate: float) -> None:
    compressor = COMPRESSORS.parse({"kind": "powersgd", "rank": rank, "min_compression_rate": rate})
    assert isinstance(compressor, PowerSgd)
    for rows, columns in [(20, 30), (8, 8), (16, 16), (24, 24), (100, 3), (1000, 12)]:
        factored, *_ = powerSGD_hook._should_compress(rows, columns, rank, rate)
        assert (compressor.matrix((rows, columns)) is not None) == factored


class _Bucket:
    """What torch's hook asks of a DistributedDataParallel's only bucket."""

    def __init__(self, flat: torch.Tensor, shapes: list[tuple[int, ...]]) -> None:
        self._flat, self._shapes = flat, shapes

    def buffer(self) -> torch.Tensor:
        return self._flat

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def gradients(self) -> list[torch.Tensor]:
        parts = self._flat.split([torch.Size(shape).numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


def _alike(seed: int) -> torch.Tensor:
    """For ALIKE."""
    return torch.cat([_gradient(seed + number, rank=6)[:600] for number in range(3)] + [_gradient(seed)[:20]])


ALIKE = [Piece(0, (20, 30)), Piece(1, (20, 30)), Piece("bias", (20,)), Piece(2, (20, 5, 6))]


@pytest.mark.parametrize("error_feedback", [False, True])
def test_matrices_of_one_shape_go_together_to_the_same_result(
    monkeypatch: pytest.MonkeyPatch, error_feedback: bool
) -> None:
    """Also when one of them is zero, or no number, and the others are not."""
    options = {"kind": "powersgd", "rank": 2, "error_feedback": error_feedback}
    single, together = (Workers({**options, "batch_same_shapes": batched}, 2) for batched in (False, True))
    factored: list[int] = []
    plain = powersgd._orthogonal
    monkeypatch.setattr(powersgd, "_orthogonal", lambda each: factored.append(len(each)) or plain(each))
    for round_ in range(8):
        values = [_alike(10 * round_ + rank) for rank in range(2)]
        if round_ == 3:
            values[0][700] = float("nan")
        if round_ == 5:
            values = [torch.cat([torch.zeros(600), each[600:]]) for each in values]
        expected = single.mean(values, ALIKE)[0]
        factored.clear()
        found = together.mean(values, ALIKE)[0]
        assert torch.allclose(found, expected, atol=1e-4, equal_nan=True)
        assert factored.count(3) == 4  # twice a worker: three matrices at once
        assert torch.isfinite(found[:600]).all()
        assert torch.isfinite(found).all() == (round_ != 3)
    assert (
        together.payload_bytes()
        == single.payload_bytes()
        == together.compressor.payload_bytes([piece.shape for piece in ALIKE], 2)
    )


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    """Of gloo, whose own threads call the hook's callbacks, which refer to the group, and drop them after wait() has
    returned: a group whose last reference goes there joins the thread it is on, and the process aborts or hangs."""
    dist.init_process_group("gloo", store=FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    group = dist.group.WORLD
    num_references = sys.getrefcount(group)
    yield
    deadline_s = time.monotonic() + 60
    while sys.getrefcount(group) > num_references:
        assert time.monotonic() < deadline_s, "a callback still refers to the group"
        time.sleep(0.001)
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("batched", [False, True])
def test_it_goes_as_torch_s_hook_from_the_same_start(batched: bool) -> None:
    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=2,
        start_powerSGD_iter=2,
        min_compression_rate=2,
        batch_tensors_with_same_shape=batched,
    )
    workers = Workers(
        {"kind": "powersgd", "rank": 2, "start": 2, "min_compression_rate": 2.0, "batch_same_shapes": batched}, 1
    )
    queries = torch.linalg.qr(torch.randn(3, 30, 2, generator=torch.Generator().manual_seed(5)))[0]
    state.p_memory_dict[0], state.q_memory_dict[0] = torch.zeros(3 * 20 * 2), queries.flatten().clone()
    codec = workers.members[0]._codec
    assert isinstance(codec, powersgd._Codec)
    codec._queries |= {number: queries[number].numpy().copy() for number in range(3)}
    order = [ALIKE[0], ALIKE[1], ALIKE[3], ALIKE[2]]
    for number in range(10):  # what the roundings of two libraries differ by doubles from each to the next
        gradient = _alike(3 * number)
        theirs = gradient.clone()
        powerSGD_hook.powerSGD_hook(
            state,
            _Bucket(theirs, [piece.shape for piece in order]),
        ).wait()
        ours = workers.mean([gradient], order)[0]
        assert torch.allclose(ours, theirs, atol=2e-3)
        assert torch.allclose(ours, gradient, atol=1e-3) == (number < 2)

"""Exchanges over a transport: accounts, tensors of any shape, what is refused."""

from typing import Literal

import pytest
import torch

from tests.threads import run_communicators
from transports.compression.base import COMPRESSORS, Piece
from transports.errors import OptionError
from transports.execution.communicator import Communicator
from transports.execution.gradients import GradientCompression
from transports.execution.trace import OperationTrace


def _exchange(communicator: Communicator, compression: object, values: torch.Tensor) -> torch.Tensor:
    own = GradientCompression(COMPRESSORS.parse(compression), rank=communicator.rank, num_workers=communicator.size)
    layout = [Piece(0, tuple(values.shape))]
    communicator.submit("all_reduce", lambda transport: own.reduce(transport, values, layout), values.nbytes).wait(10)
    return values


@pytest.mark.parametrize(
    ("compression", "payload_bytes"),
    [("fp16", 200_000), ("top_k", 8 * 1000), ({"kind": "threshold", "threshold": 10.0}, 8), ("thc", 4 + 100_352)],
)
def test_a_trace_tells_true_bytes_and_the_codecs_time(compression: object, payload_bytes: int) -> None:
    traces: list[OperationTrace] = []
    run_communicators(
        lambda communicator: _exchange(communicator, compression, torch.ones(100_000)), 2, on_trace=traces.append
    )
    for trace in traces:
        assert trace.size_bytes == 400_000
        assert trace.payload_bytes == payload_bytes
        assert trace.encode_s > 0
        assert trace.decode_s > 0
        assert trace.encode_s + trace.decode_s <= 2 * (trace.done_s - trace.started_s)


def test_payloads_of_different_lengths_arrive_whole() -> None:
    def exchange(communicator: Communicator) -> torch.Tensor:
        values = torch.zeros(100)
        values[: 10 * communicator.rank] = 3.0
        return _exchange(communicator, {"kind": "threshold", "threshold": 1.0}, values)

    for result in run_communicators(exchange, 3):
        assert result.tolist() == [2.0] * 10 + [1.0] * 10 + [0.0] * 80


def test_an_uncompressed_operation_counts_its_own_size() -> None:
    traces: list[OperationTrace] = []
    run_communicators(lambda communicator: communicator.all_reduce(torch.ones(10)).wait(10), 2, on_trace=traces.append)
    assert [(trace.payload_bytes, trace.encode_s, trace.decode_s) for trace in traces] == [(40, 0.0, 0.0)] * 2


@pytest.mark.parametrize("operation", ["sum", "avg"])
def test_tensors_of_any_shape_are_reduced_in_place(operation: Literal["sum", "avg"]) -> None:
    def reduce(communicator: Communicator) -> torch.Tensor:
        own = GradientCompression(COMPRESSORS.parse("bf16"), rank=communicator.rank, num_workers=3)
        whole = torch.zeros(4, 6)
        part = whole[:, ::2]
        part.fill_(1.0 + communicator.rank)
        communicator.submit(
            "all_reduce",
            lambda transport: own.all_reduce(transport, part, operation),
            part.nbytes,
        ).wait(10)
        return whole

    for whole in run_communicators(reduce, 3):
        assert torch.allclose(whole[:, ::2], torch.tensor(6.0 if operation == "sum" else 2.0), rtol=1e-2)
        assert not whole[:, 1::2].any()


def test_more_workers_than_a_compressor_can_add_are_refused() -> None:
    with pytest.raises(OptionError, match="register_bits"):
        GradientCompression(COMPRESSORS.parse("thc"), rank=0, num_workers=200)

"""The sum of sparse tensors: everybody gathers everybody's indices and values, and adds.

What `nn.Embedding(sparse=True)` under DistributedDataParallel needs. Nothing can be reduced on the way without merging
indices at every step; so torch's gloo gathers, and then adds in the order of the ranks (AsyncSparseAllreduceWork in
ProcessGroupGloo.cpp), and so do we: the results are equal to the last bit.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

import torch

from transports.errors import FrameMismatchError, OptionError
from transports.execution.operations import ReduceOperation, Transport, check

NUM_DIMENSIONS_MAX: Final = 64
"""As many as a tensor of torch can have."""
_NUM_HEADER: Final = 3 + NUM_DIMENSIONS_MAX
"""Elements of a header: stored elements, dimensions, sparse dimensions, and the size in each dimension."""


def check_sparse(tensor: torch.Tensor, op: ReduceOperation) -> None:
    """Raises OptionError for what :func:`all_reduce` cannot sum."""
    if op not in ("sum", "avg"):
        raise OptionError(f"sparse tensors are reduced with SUM or AVG, not {op.upper()}")
    check(tensor._values(), op)  # noqa: SLF001 - values() is refused before coalescing, which copies


def size_bytes(tensor: torch.Tensor) -> int:
    """What a rank gives away of a sparse tensor: its values and their indices."""
    return int(tensor._values().nbytes + tensor._indices().nbytes)  # noqa: SLF001 - as above


def all_reduce(transport: Transport, tensor: torch.Tensor, op: ReduceOperation) -> None:
    """Reduce a sparse COO tensor over all ranks, in place; it ends coalesced. The number of stored elements may differ
    from rank to rank.

    Raises FrameMismatchError when the shapes differ.
    """
    with torch.no_grad():
        own = tensor.coalesce()
        counts = _counts(_headers(transport, own), transport.rank)
        indices = _gather(transport, own.indices().t().contiguous(), counts)
        values = _gather(transport, own.values(), counts)
        parts = [
            torch.sparse_coo_tensor(index.t(), value, own.shape, check_invariants=False)
            for index, value in zip(indices, values, strict=True)
        ]
        total = reduce(torch.add, parts).coalesce()
        if op == "avg":  # as of dense tensors
            total.values().div_(transport.size, rounding_mode=None if total.is_floating_point() else "trunc")
        tensor.copy_(total)


def _headers(transport: Transport, own: torch.Tensor) -> list[list[int]]:
    header = torch.zeros(_NUM_HEADER, dtype=torch.int64)
    described = [own.values().shape[0], own.dim(), own.sparse_dim(), *own.shape]
    header[: len(described)] = torch.tensor(described)
    gathered = torch.empty(transport.size, _NUM_HEADER, dtype=torch.int64)
    transport.all_gather(gathered, header)
    rows: list[list[int]] = gathered.tolist()
    return rows


def _counts(headers: Sequence[Sequence[int]], rank: int) -> list[int]:
    """Stored elements of each rank's tensor."""
    own = headers[rank][1:]
    for peer, header in enumerate(headers):
        if header[1:] != own:
            raise FrameMismatchError(
                f"rank {rank} reduces a sparse tensor of {_described(own)}, rank {peer} one of {_described(header[1:])}"
            )
    return [header[0] for header in headers]


def _described(header: Sequence[int]) -> str:
    num_dimensions, num_sparse, *shape = header
    return f"shape {tuple(shape[:num_dimensions])} with {num_sparse} sparse dimensions"


def _gather(transport: Transport, own: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Every rank's rows; `own` are this one's."""
    parts = [own.new_empty((count, *own.shape[1:])) for count in counts]
    transport.all_to_all(parts, [own] * transport.size)
    return parts

# torch declares the function that is replaced nowhere but in its own source.
# mypy: disable-error-code="attr-defined"
"""Scripts that name gloo or nccl, or no backend, get ours: `testbed exec --backend testbed`.

    TESTBED_REDIRECT   a file; of each process group that is ours it gets a line `RANK BACKEND`

Every process group of torch 2.13, by whatever function, is made by `distributed_c10d._new_process_group_helper`
(init_process_group, new_group, DeviceMesh, what is built on them); there the name is replaced. Tensors must
be on the CPU. `get_backend()` says `testbed`. mpi, ucc and other names are left alone.
`torch.distributed.monitored_barrier`, which is for groups whose backend is called gloo, serves ours too.
"""

import functools
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from transports.errors import UnsupportedError

REDIRECTED: Final = frozenset({"gloo", "nccl", "undefined"})
"""`undefined` is what torch calls a group for which no backend was named."""
_HELPER: Final = "_new_process_group_helper"


def target(backend: str, ours: str) -> str:
    """The backend that takes the place of `gloo`, `cpu:gloo,cuda:nccl`, ...; the same where there is another in it."""
    named = {part.rpartition(":")[2].lower() for part in backend.split(",")}
    return ours if named <= REDIRECTED else backend


def install(ours: str, record: Path) -> None:
    """From now on process groups of this process are redirected. Idempotent.

    Raises UnsupportedError where torch has no such function, or the file cannot be written.
    """
    original = getattr(c10d, _HELPER, None)
    if original is None:
        raise UnsupportedError(f"TESTBED_REDIRECT: this torch has no distributed_c10d.{_HELPER}; use torch 2.13")
    if hasattr(original, "__wrapped__"):
        return
    if not os.access(record, os.W_OK):
        raise UnsupportedError(f"TESTBED_REDIRECT: {record} cannot be written")

    @functools.wraps(original)
    def helper(size: int, rank: int, members: Any, backend: str, *positional: Any, **named: Any) -> Any:
        taken = target(str(backend), ours)
        if taken == ours:  # also where it was requested by name: the record says what made the groups
            _note(record, str(backend))
        if taken != str(backend):
            # What gloo or nccl would have been given about streams and devices means nothing to ours.
            named |= {"backend_options": None, "device_id": None}
        return original(size, rank, members, c10d.Backend(taken), *positional, **named)

    setattr(c10d, _HELPER, helper)
    c10d.monitored_barrier = dist.monitored_barrier = _monitored_barrier(c10d.monitored_barrier, ours)


def _monitored_barrier(original: Callable[..., None], ours: str) -> Callable[..., None]:
    """torch's function, that lets groups of ours through."""

    @functools.wraps(original)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if c10d._rank_not_in_group(group) or c10d.get_backend(group) != ours:  # noqa: SLF001 - as the original asks
            original(group, timeout, wait_all_ranks)
            return
        # The original takes a float for seconds, too, and warns of it.
        limit = timedelta(seconds=timeout) if isinstance(timeout, float) else timeout
        if limit is not None:
            c10d._check_valid_timeout(limit)  # noqa: SLF001 - as above
        members: Any = c10d._get_default_group() if group is None else group  # noqa: SLF001
        members.monitored_barrier(limit, wait_all_ranks)

    return monitored_barrier


def _note(record: Path, backend: str) -> None:
    requested = "default" if backend == "undefined" else backend
    with record.open("a") as file:  # one short line: appended whole, whoever else writes
        file.write(f"{os.environ.get('RANK', '?')} {requested}\n")

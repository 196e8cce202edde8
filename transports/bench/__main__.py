"""`torchrun --nproc-per-node 4 -m transports.bench`: collectives timed on a real cluster, as nccl-tests and the OSU
benchmarks time them."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer
from pydantic import ValidationError
from rich.console import Console

from transports.bench.options import FORMAT_HELP, SIZES_HELP, parse_sizes
from transports.bench.rows import TIMED_OPERATIONS, Row, Sample, element_bytes, parse_format, summarise
from transports.bench.stacks import Composed, StackLike, parse_stack
from transports.bench.terminal import standard_output
from transports.channels.framing import DTYPES
from transports.collectives.base import Operation
from transports.errors import OptionError, TransportError, UnsupportedError
from transports.execution.gradients import COMPRESSIBLE
from transports.torch_backend.environment import own_address, rack_numbers, require_known, require_rack_each
from transports.units import format_size, parse_rate_bps, parse_time_s

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

SCHEMA_VERSION: Final = 1
TIMED_DTYPES: Final = tuple(dtype for dtype in DTYPES if dtype not in ("bool", "uint8", "int8", "int16"))
"""Those in which sums of many ranks fit."""
_LAUNCHED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def counts_of(sizes_bytes: Sequence[int], *, dtype: str, num_workers: int) -> list[int]:
    """Elements of each size, rounded up to as many for every rank; sizes that become the same are one."""
    granule_bytes = num_workers * element_bytes(dtype)
    return list(dict.fromkeys(-(-size_bytes // granule_bytes) * num_workers for size_bytes in sizes_bytes))


def parse_stacks(text: str, compression: str | None, *, operation: Operation, dtype: str) -> dict[str, StackLike]:
    """By name, the comma-separated stacks; with a compression beside them, what it compresses is in once more with it.
    Raises OptionError for what cannot be timed here."""
    import torch

    names = text.split(",")
    if compression is not None:
        plain = [name for name in names if name.count("/") == 1]
        if not plain:
            raise OptionError(f"--compression {compression}: none of {text} is COLLECTIVE/CHANNEL, which it goes with")
        names += [f"{name}/{compression}" for name in plain]
    stacks = {name: parse_stack(name) for name in dict.fromkeys(names)}
    for name, stack in stacks.items():
        if not isinstance(stack, Composed):
            continue
        if not stack.channel.crosses_links:
            raise OptionError(f"{name!r} joins ranks of one process, and these are several")
        if stack.collective.num_servers:
            raise OptionError(
                f"{name!r}: dedicated servers are processes of their own, which `testbed bench allreduce` starts; "
                "allowed here: `placement=co_located`"
            )
        if not stack.compression.compresses:
            continue
        if operation != "all_reduce" or getattr(torch, dtype) not in COMPRESSIBLE:
            raise OptionError(
                f"{name!r}: compression changes all_reduce of "
                f"{', '.join(str(each).removeprefix('torch.') for each in COMPRESSIBLE)}, not {operation} of {dtype}"
            )
    return stacks


def require_launched(environment: Mapping[str, str]) -> None:
    """Raises UnsupportedError, with the fix, unless a launcher has said who we are."""
    if missing := [name for name in _LAUNCHED if not environment.get(name)]:
        raise UnsupportedError(
            f"{', '.join(missing)} not set: start with `torchrun --nproc-per-node 4 -m transports.bench`, or with any "
            f"launcher that sets {', '.join(_LAUNCHED)}"
        )


def racks_of(stacks: Mapping[str, StackLike], environment: Mapping[str, str]) -> tuple[int, ...]:
    """Each rank's, as TESTBED_RACKS says; empty: all in one. Raises OptionError where that is no number for each rank,
    and where it is missing for a stack that goes by racks."""
    racks = rack_numbers(environment)
    require_rack_each(racks, int(environment["WORLD_SIZE"]))
    for name, stack in stacks.items():
        if not racks and isinstance(stack, Composed) and stack.collective.uses_racks:
            raise OptionError(f"{name!r} goes by racks: set TESTBED_RACKS on every rank, such as 0,0,1,1 for four")
    return racks


def measure(
    stacks: Mapping[str, StackLike],
    counts: Sequence[int],
    *,
    operation: Operation,
    dtype: str,
    num_warmup: int,
    num_samples: int,
    timeout_s: float,
    rate_bps: float | None,
    racks: tuple[int, ...],
    progress: Console,
) -> list[Row]:
    """Join the other ranks and time every size on every stack; rows on rank 0, none elsewhere."""
    import torch
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from transports.bench.timing import Operands, allowed_error, timed
    from transports.group import Group

    store, rank, num_workers = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    chosen = getattr(torch, dtype)
    rows: list[Row] = []
    with ExitStack() as opened:
        communicators = {}
        for name, stack in stacks.items():
            group = Group(
                name=name,
                rank=rank,
                size=num_workers,
                address=own_address(os.environ),
                store=PrefixStore(f"transports.bench/{name}", store),
                timeout_s=timeout_s,
                racks=racks,
            )
            communicators[name] = opened.enter_context(closing(stack.open(group)))
        for number, num_elements in enumerate(counts):
            allowed = {
                name: allowed_error(stack, dtype=chosen, num_workers=num_workers, num_elements=num_elements)
                for name, stack in stacks.items()
            }
            operands = Operands(operation, rank=rank, num_workers=num_workers, num_elements=num_elements, dtype=chosen)
            samples = list(
                timed(communicators, operands, allowed=allowed, num_warmup=num_warmup, num_samples=num_samples)
            )
            everyones = _gathered(samples, store, f"transports.bench/samples/{number}", rank, num_workers, timeout_s)
            rows += summarise(
                everyones, operation=operation, dtype=dtype, num_workers=num_workers, rate_bps=rate_bps, racks=racks
            )
            if rank == 0:
                progress.print(f"{number + 1} of {len(counts)} sizes: {format_size(operands.size_bytes)} done")
    return rows


def _gathered(
    samples: Sequence[Sample], store: "Store", prefix: str, rank: int, num_workers: int, timeout_s: float
) -> list[Sample]:
    """Every rank's, on rank 0; none elsewhere."""
    store.set(f"{prefix}/{rank}", json.dumps([asdict(sample) for sample in samples]))
    if rank != 0:
        return []
    keys = [f"{prefix}/{member}" for member in range(num_workers)]
    store.wait(keys, timedelta(seconds=timeout_s))
    return [Sample(**each) for key in keys for each in json.loads(store.get(key))]


app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)


@app.command(
    epilog="Example: torchrun --nproc-per-node 4 -m transports.bench --stack ring/tcp,auto/tcp,gloo --sizes 4B:64MiB:4 "
    "--rate 1gbit. On several machines: the same command on each, with torchrun's --nnodes, --node-rank, --master-addr "
    "(TESTBED_ADDRESS or TESTBED_INTERFACE say what to listen on, if not the interface that routes to MASTER_ADDR)."
)
def bench(
    operation: Annotated[str, typer.Option(help=f"One of {', '.join(TIMED_OPERATIONS)}.")] = "all_reduce",
    sizes: Annotated[
        str, typer.Option(help=f"{SIZES_HELP}; of the larger buffer, as nccl-tests has it.")
    ] = "4B:64MiB:4",
    stack: Annotated[
        str,
        typer.Option(
            help="Comma-separated COLLECTIVE/CHANNEL, COLLECTIVE/CHANNEL/COMPRESSION or baseline libraries; options "
            "stand behind what they are of: ring/udp:rate=1gbit:window=aimd."
        ),
    ] = "ring/tcp,auto/tcp,gloo",
    compression: Annotated[
        str | None, typer.Option(help="Time every COLLECTIVE/CHANNEL with this compression too, such as fp16.")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(TIMED_DTYPES)}.")] = "float32",
    warmup: Annotated[int, typer.Option(help="Operations of each size and stack before those that count.", min=0)] = 5,
    iterations: Annotated[int, typer.Option(help="Operations that count.", min=1, max=100_000)] = 20,
    rate: Annotated[
        str | None, typer.Option(help="Of every rank's link, such as 10gbit: adds the share of the bound.")
    ] = None,
    timeout: Annotated[str, typer.Option(help="For meeting, and for each operation.")] = "60s",
    format_: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "table",
    as_json: Annotated[
        bool, typer.Option("--json", help="One object on standard output instead of the table.")
    ] = False,
) -> None:
    """Time a collective of each size on each stack, interleaved in one run, every result checked.

    A stack's turn is one operation that is not timed and one that is, as where operations follow each other; of
    operations that last for seconds, only the one that is timed.

    Run it under torchrun, or any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; rank 0 prints.

    time is that of the slowest rank; algbw is size over time, busbw that times nccl-tests' factor for the operation
    (2(N-1)/N, (N-1)/N or 1); rank 0 is the root where there is one. wire/rank is what the rank that sends most puts on
    an Ethernet of MTU 1500, by its schedule. CPU s/GB is the CPU time of all ranks over what they moved (busbw's bytes
    times N). error is the largest relative L2 error against the sum in float64; an operation that errs by more than its
    type and its compression explain fails the run. The share of the bound can exceed 100 % with compression, or where
    --rate says too little.
    A compressor that keeps something of each parameter takes a size for one parameter, a matrix as square as can be.
    """
    if operation not in TIMED_OPERATIONS:
        raise OptionError(f"--operation {operation}: allowed: {', '.join(TIMED_OPERATIONS)}")
    if dtype not in TIMED_DTYPES:
        raise OptionError(f"--dtype {dtype}: allowed: {', '.join(TIMED_DTYPES)}")
    chosen: Operation = next(each for each in TIMED_OPERATIONS if each == operation)
    sizes_bytes, render = parse_sizes(sizes), parse_format(format_)
    stacks = parse_stacks(stack, compression, operation=chosen, dtype=dtype)
    rate_bps, timeout_s = _quantity("rate", rate), _quantity("timeout", timeout)
    require_launched(os.environ)
    require_known(os.environ)
    racks = racks_of(stacks, os.environ)
    assert timeout_s is not None, "it has a default"
    rows = measure(
        stacks,
        counts_of(sizes_bytes, dtype=dtype, num_workers=int(os.environ["WORLD_SIZE"])),
        operation=chosen,
        dtype=dtype,
        num_warmup=warmup,
        num_samples=iterations,
        timeout_s=timeout_s,
        rate_bps=rate_bps,
        racks=racks,
        progress=Console(stderr=True, highlight=False, soft_wrap=True),
    )
    if not rows:
        return
    if as_json:
        sys.stdout.write(json.dumps({"schema_version": SCHEMA_VERSION, "rows": rows}) + "\n")
    else:
        render(rows, standard_output())


def _quantity(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = parse_rate_bps(text) if option == "rate" else parse_time_s(text)
    except ValueError as error:
        raise OptionError(f"--{option}: {error}") from None
    if value <= 0:
        raise OptionError(f"--{option} {text}: above 0")
    return value


def main() -> None:
    """Errors are one line; 1 the run failed, 2 what was requested cannot be, 3 something
    is missing on this machine or in its launcher."""
    try:
        app()
    except (OptionError, ValidationError) as error:
        status, message = 2, str(error)
    except UnsupportedError as error:
        status, message = 3, str(error)
    except (TransportError, RuntimeError, ValueError, OSError) as error:
        status, message = 1, str(error)
    else:
        return
    rank = os.environ.get("RANK", "0")
    if status == 1 or rank == "0":  # every rank finds the same fault in the same options
        sys.stderr.write(f"transports.bench: rank {rank}: {message}\n")
    sys.exit(status)


if __name__ == "__main__":
    main()

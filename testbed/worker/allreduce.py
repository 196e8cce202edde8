"""A worker of the `allreduce` workload: every size on every stack, interleaved, each result checked."""

import json
from dataclasses import asdict, replace
from typing import Final

import torch
from torch._C._distributed_c10d import FileStore, PrefixStore

from testbed.control.control_pb2 import Event, Result
from testbed.control.worker import WorkerConfiguration, WorkerControl
from testbed.experiment.workloads.allreduce import AllReduce
from transports.bench.rows import Sample
from transports.bench.stacks import Composed, StackLike, parse_stack
from transports.bench.timing import Operands, allowed_error, timed
from transports.group import Group

SHORT_S: Final = 0.02
"""What a report of a millisecond or two would show in."""


def work(options: AllReduce, configuration: WorkerConfiguration, control: WorkerControl) -> None:
    """Open every stack, then time them in turn; reports a Result for each sample: of short operations, which the report
    of the one before would delay, once all of a size are there."""
    torch.set_num_threads(configuration.num_threads)
    store = FileStore(configuration.store_path, configuration.num_workers)
    stacks = {name: _with_network_info(parse_stack(name), configuration) for name in options.stacks}
    communicators = {
        name: stack.open(
            Group(
                name=name,
                rank=configuration.rank,
                size=configuration.num_workers,
                address=configuration.address,
                store=PrefixStore(name, store),
                timeout_s=configuration.timeout_s,
                racks=configuration.racks,
            )
        )
        for name, stack in stacks.items()
    }
    control.barrier("measure")
    for size_bytes in options.sizes_bytes:
        num_workers, num_elements = configuration.num_workers, size_bytes // 4
        operands = Operands(
            "all_reduce",
            rank=configuration.rank,
            num_workers=num_workers,
            num_elements=num_elements,
            seed=configuration.seed,
        )
        allowed = {
            name: allowed_error(stack, dtype=torch.float32, num_workers=num_workers, num_elements=num_elements)
            for name, stack in stacks.items()
        }
        samples = timed(
            communicators,
            operands,
            allowed=allowed,
            num_warmup=1,
            num_samples=options.num_samples(size_bytes),
            latency_s=configuration.network_info.latency_s,
            rest_s=configuration.network_info.rest_s,
        )
        kept: list[Sample] = []
        for sample in samples:
            kept.append(sample)
            if sample.duration_s > SHORT_S:
                _report(kept, control)
        _report(kept, control)
        control.barrier("reported")
    control.barrier("done")
    for communicator in communicators.values():
        communicator.close()


def _report(samples: list[Sample], control: WorkerControl) -> None:
    """And forget them."""
    for sample in samples:
        control.report(Event(result=Result(json=json.dumps(asdict(sample)))))
    samples.clear()


def _with_network_info(stack: StackLike, configuration: WorkerConfiguration) -> StackLike:
    """The stack, whose collective knows the links if it wants to."""
    if not isinstance(stack, Composed):
        return stack
    known = stack.collective.with_network_info(configuration.network_info)
    return replace(stack, collective=known.with_assignment(configuration.aggregators))

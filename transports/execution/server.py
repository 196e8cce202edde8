"""A participant outside the workers' ranks: takes part in those of their operations that need servers.

It knows nothing in advance. The header of the first message of an operation says which one it is, on what and how
much, and the server's own steps follow from that as the workers' do.
"""

import math
import time
from contextlib import closing
from dataclasses import replace
from typing import get_args

import torch

from transports.channels.base import Channel, Header
from transports.channels.framing import DTYPES, OPERATIONS, REDUCTIONS, describe, group_id
from transports.collectives.base import Collective, Operation
from transports.errors import FrameMismatchError
from transports.execution.executor import Exchange, Executor
from transports.execution.operations import reduction_of
from transports.group import Group


def serve(collective: Collective, channel: Channel, group: Group, number: int) -> None:
    """Be server `number` of the workers' group until they have all left; `group` has their size and the server's own
    address, and its rank says nothing.

    Raises what `Channel.open` and `Endpoint.progress` raise, at once when a worker dies.
    """
    world = collective.world(group.size, racks=group.racks)
    participant = group.size + number
    with closing(channel.open(replace(group, rank=participant, size=world.size))) as endpoint:
        executor = Executor(collective, endpoint, world=world, participant=participant, group=group_id(group.name))
        # Whatever workers need servers for, the first of them takes part in. They may be busy elsewhere for ever.
        while (header := endpoint.peek(0, math.inf)) is not None:
            _take_part(executor, header, deadline_s=time.monotonic() + group.timeout_s)
        for worker in range(1, group.size):  # their last operation may be one without servers
            if (header := endpoint.peek(worker, time.monotonic() + group.timeout_s)) is not None:
                # It waits for a worker that has left: whoever takes part hears which, and says so when it leaves.
                _take_part(executor, header, deadline_s=time.monotonic() + group.timeout_s)


def _take_part(executor: Executor, header: Header, *, deadline_s: float) -> None:
    dtype = getattr(torch, DTYPES[header.dtype])
    operation = next((name for name in get_args(Operation) if name == OPERATIONS[header.operation]), None)
    if operation is None:
        raise FrameMismatchError(f"no server takes part in {describe(header)}")
    root, reduction = divmod(header.argument, len(REDUCTIONS))
    exchange = Exchange(
        operation, header.total, header.dtype, reduction_of(dtype, REDUCTIONS[reduction]), root, header.argument
    )
    program = executor.program(exchange)
    output = torch.empty(program.num_output, dtype=torch.uint8 if dtype == torch.bool else dtype)
    executor.run(program, {"output": output}, sequence=header.sequence, deadline_s=deadline_s)

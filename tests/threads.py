"""Runs a function once per rank, each rank in a thread of this process: groups over loopback or in memory."""

import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final

import pytest

from transports.channels.base import CHANNELS
from transports.channels.memory import MemoryStore
from transports.collectives.base import COLLECTIVES
from transports.errors import PeerLostError
from transports.execution.communicator import Communicator
from transports.execution.server import serve
from transports.group import Group


def groups(size: int, *, timeout_s: float = 20.0) -> list[Group]:
    """One group's members, which meet in a store of their own."""
    store, name = MemoryStore(), uuid.uuid4().hex
    return [
        Group(name=name, rank=rank, size=size, address="127.0.0.1", store=store, timeout_s=timeout_s)
        for rank in range(size)
    ]


_HUNG_S: Final = 300.0
"""Beside a program that takes a core, what computes for seconds in the time that others leave takes minutes."""


def run_threads(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
    """`function(argument)` for each argument at once; what each returned, or the exception that it raised.

    An assertion that does not hold in one of them is the test's failure, whichever of the results it looks at."""
    results: list[Any] = [None] * len(arguments)

    def call(index: int) -> None:
        try:
            results[index] = function(arguments[index])
        except BaseException as error:  # noqa: BLE001 (the test decides what an error means)
            results[index] = error

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_HUNG_S)
        assert not thread.is_alive(), "a rank did not come to an end"
    for result in results:
        if isinstance(result, AssertionError | pytest.fail.Exception):
            raise result
    return results


def run_communicators(
    function: Callable[[Communicator], Any],
    size: int,
    *,
    channel: object = "memory",
    collective: object = "ring",
    timeout_s: float = 20.0,
    **options: Any,
) -> list[Any]:
    """The same with a communicator per rank, closed at the end, and the servers that the collective needs beside.

    `timeout_s` is that of operations. The members have longer to meet: threads of a busy machine begin one late after
    the other."""

    parsed, over = COLLECTIVES.parse(collective), CHANNELS.parse(channel)

    def life(member: tuple[Group, int | None]) -> Any:
        group, server = member
        if server is not None:
            return serve(parsed, over, group, server)
        opened = Communicator(parsed, over, group, **options)
        opened._timeout_s = timeout_s
        with closing(opened):
            return function(opened)

    workers = groups(size, timeout_s=max(timeout_s, 20.0))
    servers = [(workers[0], number) for number in range(parsed.num_servers)]
    results = run_threads(life, [*((group, None) for group in workers), *servers])
    for result in results[size:]:
        assert result is None or isinstance(result, PeerLostError), f"a server failed: {result!r}"
    return results[:size]

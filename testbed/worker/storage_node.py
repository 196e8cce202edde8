"""The storage node's side of a run: `main` is the entry that the fork server calls on node `d0`.

Each worker has one connection. A request says how many bytes it wants (big endian, REQUEST_BYTES long), and so many
bytes come back; what they are means nothing. The disk is a queue of one server: it reads blocks one after the other at
its rate, and each connection has at most two of them under way, the one that is being sent and the one behind it, so
that a slow network holds the disk back and not the other way round.
"""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from testbed.control.worker import StorageConfiguration
from testbed.experiment.clock import Clock
from testbed.experiment.storage.base import REQUEST_BYTES
from testbed.worker.raising_threads import RaisingThreads

_MAX_BLOCK_BYTES: Final = 256 * 1024
_MIN_BLOCK_BYTES: Final = 16 * 1024
_NUM_UNDER_WAY: Final = 2
"""Blocks of a connection."""
_BLOCK_S: Final = 5e-3
"""Of a disk's time: short beside what is measured, long beside a wake-up."""


def main(configuration_json: str) -> None:
    """Serve until every worker has closed its connection. Raises what serving raises."""
    configuration = StorageConfiguration.model_validate_json(configuration_json)
    clock = Clock(configuration.dilation)
    disk_bps = configuration.disk_bps
    disk = Disk(None if disk_bps is None else clock.real_bps(disk_bps) / 8)
    with socket.create_server(
        (configuration.address, configuration.port), backlog=configuration.num_workers
    ) as listener:
        serve(listener, disk, configuration.num_workers)


class Disk:
    """Reads at a rate, whoever asks; callable from any thread."""

    def __init__(self, bytes_per_s: float | None, now_s: Callable[[], float] = time.monotonic) -> None:
        """None: in no time."""
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._free_s = 0.0

    @property
    def block_bytes(self) -> int:
        """That are best read at once."""
        if self._bytes_per_s is None:
            return _MAX_BLOCK_BYTES
        return min(_MAX_BLOCK_BYTES, max(_MIN_BLOCK_BYTES, int(self._bytes_per_s * _BLOCK_S)))

    def read(self, num_bytes: int) -> float:
        """Begin to read a block, behind all that were begun before; returns the moment at which it will be there."""
        with self._lock:
            begun_s = max(self._now_s(), self._free_s)
            self._free_s = begun_s + (num_bytes / self._bytes_per_s if self._bytes_per_s else 0.0)
            return self._free_s


def block_sizes(num_bytes: int, block_bytes: int) -> Iterator[int]:
    """Whole blocks and a rest."""
    whole, rest = divmod(num_bytes, block_bytes)
    yield from (block_bytes for _ in range(whole))
    if rest:
        yield rest


def read_ahead(disk: Disk, sizes: Iterator[int]) -> Iterator[tuple[float, int]]:
    """When each block is there, and its size; the one behind it is being read by then."""
    under_way: deque[tuple[float, int]] = deque()
    for size in sizes:
        under_way.append((disk.read(size), size))
        if len(under_way) == _NUM_UNDER_WAY:
            yield under_way.popleft()
    yield from under_way


def serve(listener: socket.socket, disk: Disk, num_workers: int) -> None:
    """Each worker on a thread of its own. Raises what the first thread that failed has raised."""

    def run(connection: socket.socket) -> None:
        with suppress(ConnectionError), connection:  # the worker is gone; why, it or the coordinator says
            _serve(connection, disk)

    threads = RaisingThreads()
    for number in range(num_workers):
        connection, _ = listener.accept()
        threads.start(partial(run, connection), name=f"storage for worker {number}")
    threads.join()


def _serve(connection: socket.socket, disk: Disk) -> None:
    # The last segment must not wait for the acknowledgement of the one before (Nagle, RFC 1122, 4.2.3.4); so that
    # blocks nevertheless leave in full segments, they are whole numbers of these.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    segment_bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    block_bytes = max(1, disk.block_bytes // segment_bytes) * segment_bytes
    block = memoryview(bytes(block_bytes))
    while (request := _request(connection)) is not None:
        for there_s, size in read_ahead(disk, block_sizes(request, block_bytes)):
            time.sleep(max(0.0, there_s - time.monotonic()))
            connection.sendall(block[:size])


def _request(connection: socket.socket) -> int | None:
    """How many bytes are wanted; None: the worker wants no more."""
    data = b""
    while len(data) < REQUEST_BYTES:
        if not (part := connection.recv(REQUEST_BYTES - len(data))):
            return None
        data += part
    return int.from_bytes(data, "big")

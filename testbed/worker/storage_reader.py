"""A worker's side of the storage node: what it reads before it starts, and the batches of its iterations.

Bytes are received and dropped: what a worker computes with does not come from there, only the time until it has it.
"""

import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from testbed.control.worker import WorkerStorage
from testbed.experiment.storage.base import REQUEST_BYTES, STORAGE_NODE

OnRead = Callable[[str, float, float, int], None]
"""What was read for, from when to when (CLOCK_MONOTONIC), and how many bytes it were."""
_BUFFER_BYTES: Final = 2**20
_RETRY_S: Final = 0.02
_REPORT_S: Final = 1.0
"""A long reading is reported in pieces, so that nobody takes a worker that reads for one that hangs."""


class StorageLostError(ConnectionError):
    """The storage node closed a connection, or said nothing for too long."""


class StorageReader:
    """The worker's connection; one reading at a time."""

    def __init__(self, address: str, port: int, timeout_s: float, on_read: OnRead) -> None:
        """Connects, for so many wall seconds if need be: the node may be starting yet. Raises StorageLostError."""
        self._on_read = on_read
        self._timeout_s = timeout_s
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._connection = _connected(address, port, timeout_s)

    def read(self, num_bytes: int, what: str) -> float:
        """Returns when the last byte was there. Raises StorageLostError."""
        begun_s = time.monotonic()
        counted = left = num_bytes
        now_s = begun_s
        try:
            self._connection.sendall(num_bytes.to_bytes(REQUEST_BYTES, "big"))
            while left:
                received = self._connection.recv_into(self._buffer, min(left, _BUFFER_BYTES))
                if not received:
                    raise StorageLostError(f"storage node {STORAGE_NODE} closed the connection")
                left -= received
                now_s = time.monotonic()
                if now_s - begun_s >= _REPORT_S and left:
                    self._on_read(what, begun_s, now_s, counted - left)
                    begun_s, counted = now_s, left
        except TimeoutError as error:
            raise StorageLostError(
                f"storage node {STORAGE_NODE} sent nothing for {self._timeout_s:.1f} s (wall time); {left:,} of "
                f"{num_bytes:,} bytes were missing"
            ) from error
        except OSError as error:
            if isinstance(error, StorageLostError):
                raise
            raise StorageLostError(f"storage node {STORAGE_NODE} is lost: {error}") from error
        self._on_read(what, begun_s, now_s, counted)
        return now_s

    def close(self) -> None:
        """Ends a reading that is under way on another thread, too. The node ends when all workers have closed."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _connected(address: str, port: int, timeout_s: float) -> socket.socket:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection((address, port), timeout=timeout_s)
        except ConnectionRefusedError as error:
            if time.monotonic() > deadline_s:
                raise StorageLostError(f"storage node {STORAGE_NODE} did not listen for {timeout_s:.1f} s") from error
            time.sleep(_RETRY_S)
        except OSError as error:
            raise StorageLostError(f"storage node {STORAGE_NODE} cannot be reached: {error}") from error


class Input:
    """The input of a worker's iterations, as it comes."""

    @abstractmethod
    def take(self, start_s: float) -> float | None:
        """Of the iteration that begins at that moment; returns when the host had its batch, None: nothing has to be
        read for it."""

    def computing_from(self, at_s: float) -> None:
        """The batch taken is computed with from that moment: its place is free for another."""

    def settle(self) -> None:
        """Return when nothing is being read: all links are quiet."""


class InMemory(Input):
    """Data are where they are needed."""

    def take(self, start_s: float) -> None:
        """There."""


class OnDemand(Input):
    """Each batch is read when its iteration begins."""

    def __init__(self, read: Callable[[], float]) -> None:
        """`read` reads one and returns when it was there."""
        self._read = read

    def take(self, start_s: float) -> float:
        """Once it is read."""
        _sleep_until(start_s)
        return self._read()


class Ahead(Input):
    """One batch is read while the one before is computed with."""

    def __init__(self, read: Callable[[], float], executor: ThreadPoolExecutor) -> None:
        """`read` as above; it is called on the executor's thread."""
        self._read = read
        self._executor = executor
        self._next: Future[float] | None = None
        self._left_s: float | None = None
        """Of reading the next one, when links were waited for to be quiet; negative: for how long the host has had it
        by then, in which it is copied. None: they have not been since the last."""

    def take(self, start_s: float) -> float:
        """The one that was read meanwhile; the first of all is read now. What was left of it between two phases is left
        to the second one's first iteration, which else had it for nothing, and reading would take less than it can."""
        if self._next is None:
            self.computing_from(start_s)
        assert self._next is not None, "computing_from() has begun it"
        read_s = self._next.result()
        if self._left_s is not None:
            read_s, self._left_s = start_s + self._left_s, None
            _sleep_until(read_s)
        return read_s

    def computing_from(self, at_s: float) -> None:
        """Begin with the next one then."""
        self._next = self._executor.submit(self._read_at, at_s)

    def settle(self) -> None:
        """Once the one under way is there; it stays for the next iteration."""
        if self._next is not None and self._left_s is None:
            settling_s = time.monotonic()
            self._left_s = self._next.result() - settling_s

    def _read_at(self, at_s: float) -> float:
        _sleep_until(at_s)
        return self._read()


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


class WorkerInput:
    """All that a worker reads."""

    def __init__(self, reader: StorageReader | None, storage: WorkerStorage | None, batches: Input) -> None:
        self._reader = reader
        self._storage = storage
        self.batches = batches

    @property
    def reads_at_start(self) -> bool:
        """Whether any worker reads before it starts."""
        return self._storage is not None and self._storage.reads_at_start

    def read_at_start(self) -> None:
        """This worker's part. Raises StorageLostError."""
        if self._reader is not None and self._storage is not None and self._storage.start_bytes:
            self._reader.read(self._storage.start_bytes, "reading")


@contextmanager
def worker_input(storage: WorkerStorage | None, timeout_s: float, on_read: OnRead) -> Iterator[WorkerInput]:
    """Connected to the storage node, if there is one; `timeout_s` on the wall clock.

    The thread that reads ahead lives from the beginning: it moves no gradients, and must be known by then.
    """
    if storage is None:
        yield WorkerInput(None, None, InMemory())
        return
    with ExitStack() as stack:
        executor = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="read ahead"))
        reader = StorageReader(storage.address, storage.port, timeout_s, on_read)
        stack.callback(reader.close)  # before the executor waits for what it reads
        batches: Input = InMemory()
        if storage.batch_bytes and storage.prefetch:
            executor.submit(threading.get_native_id).result()  # it has no thread before
            batches = Ahead(lambda: reader.read(storage.batch_bytes, "batch"), executor)
        elif storage.batch_bytes:
            batches = OnDemand(lambda: reader.read(storage.batch_bytes, "batch"))
        yield WorkerInput(reader, storage, batches)

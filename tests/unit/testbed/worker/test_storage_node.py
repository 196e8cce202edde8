import socket
import threading
import time
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.worker.storage_node import Disk, block_sizes, read_ahead, serve
from testbed.worker.storage_reader import StorageReader


class Clock:
    """Stands still until it is put forward."""

    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


def test_a_disk_reads_one_block_after_the_other_whoever_asks() -> None:
    clock = Clock()
    disk = Disk(1000.0, clock)
    assert [disk.read(100), disk.read(50)] == pytest.approx([10.1, 10.15])
    clock.now_s = 10.12
    assert disk.read(50) == pytest.approx(10.2), "behind the one before"
    clock.now_s = 11.0
    assert disk.read(100) == pytest.approx(11.1), "it was idle"


def test_a_disk_without_a_rate_takes_no_time() -> None:
    disk = Disk(None, Clock())
    assert [disk.read(10**12), disk.read(1)] == [10.0, 10.0]


def test_a_connection_has_two_blocks_under_way_at_most() -> None:
    clock = Clock()
    disk = Disk(1000.0, clock)
    blocks = read_ahead(disk, iter([100, 100, 100, 50]))
    assert next(blocks) == pytest.approx((10.1, 100))
    assert disk.read(0) == pytest.approx(10.2), "the second is being read, the third is not"
    times_s, sizes = zip(*blocks, strict=True)
    assert times_s == pytest.approx((10.2, 10.3, 10.35))
    assert sizes == (100, 100, 50)


@given(st.lists(st.integers(1, 1000), max_size=5))
def test_every_block_is_read_once_and_in_order(sizes: list[int]) -> None:
    assert [size for _, size in read_ahead(Disk(1e6), iter(sizes))] == sizes


@given(num_bytes=st.integers(0, 10**6), block_bytes=st.integers(1, 10**5))
def test_blocks_make_the_whole(num_bytes: int, block_bytes: int) -> None:
    sizes = list(islice(block_sizes(num_bytes, block_bytes), 10**6 + 1))
    assert sum(sizes) == num_bytes
    assert all(size == block_bytes for size in sizes[:-1])
    assert all(0 < size <= block_bytes for size in sizes)


def test_workers_share_the_disk_and_the_node_ends_with_the_last_of_them() -> None:
    num_workers, num_bytes, rate = 3, 400_000, 8e6
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener, Disk(rate), num_workers), daemon=True)
        serving.start()
        port = listener.getsockname()[1]
        found: list[int] = []

        def read() -> None:
            reader = StorageReader("127.0.0.1", port, 10.0, lambda *each: found.append(each[-1]))
            reader.read(num_bytes, "reading")
            reader.close()

        begun_s = time.monotonic()
        readers = [threading.Thread(target=read, daemon=True) for _ in range(num_workers)]
        for each in readers:
            each.start()
        for each in readers:
            each.join(20)
        took_s = time.monotonic() - begun_s
        serving.join(10)
    assert sum(found) == num_workers * num_bytes
    assert took_s >= num_workers * num_bytes / rate, "no faster than the disk"
    assert not serving.is_alive()


def test_a_worker_that_dies_is_not_the_nodes_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        errors: list[BaseException] = []

        def run() -> None:
            try:
                serve(listener, Disk(1e6), 1)
            except BaseException as error:  # noqa: BLE001 (looked at below)
                errors.append(error)

        serving = threading.Thread(target=run, daemon=True)
        serving.start()
        connection = socket.create_connection(listener.getsockname())
        connection.sendall((10**9).to_bytes(8, "big"))
        connection.recv(1000)
        connection.close()  # with bytes unread: a reset
        serving.join(10)
    assert not serving.is_alive()
    assert errors == []

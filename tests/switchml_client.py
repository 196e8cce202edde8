"""A client of p4app-switchML, after its source and independent of `switch_agg`: what its DPDK backend puts on the wire,
the calls by which it opens a session, its retransmission and its use of the pool, its exponents.

Sources (github.com/p4lang/p4app-switchML, Apache License 2.0; read, not copied): client_lib/src/backends/dpdk/
dpdk_backend.{h,cc}, dpdk_worker_thread.cc and dpdk_worker_thread_utils.inc, prepostprocessors/
cpu_exponent_quantizer_ppp.cc, schedulers/fifo_scheduler.cc, protos/switchml.proto.

The released worker thread has two faults in its timers, which `released_timers` reproduces. In the first window it
counts the packet up before it notes what to send again, so that packet p is repeated as p + 1 in p's slot, and its
timer is stopped by the result of p + 1. And packets share timers modulo the window where a tensor is shorter than it.
Without the flag each packet has the timer that the comments there describe.

A third fault is in the use of the pool and stays: see :func:`reuses_slots_too_early`.
"""

import itertools
import pickle
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import numpy as np

from switch_agg.core import Address, Datagram

SWITCH_PORT = 48864
HEADER = struct.Struct("<BBI")
"""DpdkPacketHdr without switch_pool_index: the rest is in the byte order of an x86 host."""
INT32_MAX = 2**31 - 1


# -- the session service: manual protobuf ---------------------------------------------------------------------------


def message(*fields: tuple[int, int]) -> bytes:
    """proto3 with varint fields alone; zeros are left out, as the C++ library does."""
    out = bytearray()
    for number, value in fields:
        if value:
            out += varint(number << 3) + varint(value)
    return bytes(out)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def fields_of(data: bytes) -> dict[int, int]:
    """The inverse of :func:`message`."""
    numbers, found = [], 0
    shift = 0
    for byte in data:
        found |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(found)
            found = shift = 0
    assert not any(key & 7 for key in numbers[::2])
    return {key >> 3: value for key, value in zip(numbers[::2], numbers[1::2], strict=True)}


class Controller:
    """GrpcClient: one channel, calls without a deadline (here: of a minute, for tests end)."""

    def __init__(self, address: Address) -> None:
        self._channel = grpc.insecure_channel(
            f"{address[0]}:{address[1]}", options=[("grpc.use_local_subchannel_pool", 1)]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The process ends."""
        self._channel.close()

    def call(self, method: str, request: bytes, timeout_s: float = 60.0) -> dict[int, int]:
        return fields_of(self._method(method)(request, timeout=timeout_s, wait_for_ready=True))

    def begin(self, method: str, request: bytes) -> Any:
        """The call under way."""
        return self._method(method).future(request, timeout=60.0, wait_for_ready=True)

    def _method(self, method: str) -> Any:
        return self._channel.unary_unary(
            f"/switchml_proto.{method}", request_serializer=bytes, response_deserializer=bytes
        )

    def broadcast(self, value: int, rank: int, num_workers: int) -> int:
        return self.call("Sync/Broadcast", message((1, value), (2, rank), (3, num_workers), (4, 0))).get(1, 0)

    def barrier(self, num_workers: int) -> None:
        assert self.call("Sync/Barrier", message((1, num_workers))) == {}

    def udp_session(
        self, session: int, rank: int, num_workers: int, mac: int, ip: str, packet_numel: int
    ) -> dict[int, int]:
        size = 0 if packet_numel < 64 else 1 if packet_numel < 128 else 2 if packet_numel < 256 else 3
        own = int.from_bytes(socket.inet_aton(ip), "big")
        request = message((1, session), (2, rank), (3, num_workers), (4, mac), (5, own), (7, size))
        return self.call("Session/UdpSession", request)

    def setup_switch(self, rank: int, num_workers: int, ip: str, packet_numel: int) -> Address:
        """DpdkBackend::SetupSwitch; the switch's address."""
        session = self.broadcast(time.time_ns() if rank == 0 else 0, rank, num_workers)
        own = (session, rank, num_workers, 0x020000000000 | rank, ip, packet_numel)
        if rank == 0:
            response = self.udp_session(*own)
            self.barrier(num_workers)
        else:
            self.barrier(num_workers)
            response = self.udp_session(*own)
        self.barrier(num_workers)
        assert response[1] == session
        return socket.inet_ntoa(response[3].to_bytes(4, "big")), SWITCH_PORT


# -- floats and integers ---------------------------------------------------------------------------------------------


class Quantizer:
    """CpuExponentQuantizerPPP for one job slice. What the original leaves uninitialised is noise here."""

    def __init__(
        self, values: np.ndarray, num_workers: int, packet_numel: int, window: int, noise: np.random.Generator
    ) -> None:
        self._values, self._num_workers, self._numel, self._noise = values, num_workers, packet_numel, noise
        self.main = -(-len(values) // packet_numel)
        self.batch = min(window, self.main)
        self.floats = values.dtype == np.float32
        self.total = self.main + (self.batch if self.floats else 0)
        self.result = np.zeros_like(values)
        self._scales = np.zeros(self.main, np.float32)

    def preprocess(self, packet: int) -> bytes:
        """extra_info and elements."""
        elements = self._noise.integers(-(2**31), 2**31, self._numel, dtype=np.int64).astype(np.int32)
        extra = self._noise.bytes(2)
        if not self.floats:
            part = self._values[packet * self._numel :][: self._numel]
            elements[: len(part)] = part
        else:
            if packet >= self.batch:
                part = self._values[(packet - self.batch) * self._numel :][: self._numel]
                scaled = part * self._scales[packet - self.batch]
                rounded = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled)  # std::round
                elements[: len(part)] = rounded.astype(np.int64).astype(np.int32)
            if packet < self.main:
                highest = np.abs(self._values[packet * self._numel :][: self._numel]).max()
                exponent = ((int(highest.view(np.int32)) & 0x7F800000) >> 23) - 126
                extra = struct.pack("b", (exponent + 128) % 256 - 128) + extra[1:]
        return extra + elements.astype(">i4").tobytes()

    def postprocess(self, packet: int, extra: bytes, elements: np.ndarray) -> None:
        if not self.floats:
            part = self.result[packet * self._numel :][: self._numel]
            part[:] = elements[: len(part)]
            return
        if packet >= self.batch:
            part = self.result[(packet - self.batch) * self._numel :][: self._numel]
            with np.errstate(divide="ignore"):  # a wrong sum's exponent may make any scale
                part[:] = elements[: len(part)].astype(np.float32) / self._scales[packet - self.batch]
        if packet < self.main:
            [exponent] = struct.unpack("b", extra[:1])
            power = np.float32(2.0) ** np.float32(exponent)
            self._scales[packet] = np.float32(float(INT32_MAX) / float(np.float32(self._num_workers) * power))


# -- a worker thread --------------------------------------------------------------------------------------------------


@dataclass
class Config:
    """switchml.cfg."""

    rank: int
    num_workers: int
    packet_numel: int = 64
    num_worker_threads: int = 1
    max_outstanding_packets: int = 8
    """Of all threads."""
    timeout_s: float = 0.01
    timeout_threshold: int = 100
    timeout_threshold_increment: int = 100
    released_timers: bool = False

    @property
    def window(self) -> int:
        return self.max_outstanding_packets // self.num_worker_threads


@dataclass
class Timer:
    due_s: float
    packet: int
    pool_index: int


@dataclass
class WorkerThread:
    """DpdkWorkerThread; a core for the simulator, or for :func:`drive`."""

    config: Config
    tid: int
    switch: Address
    noise: np.random.Generator
    num_timeouts: int = 0
    num_wrong: int = 0
    job: int = -1
    _shift: int = 0
    _received: set[int] = field(default_factory=set)
    _quantizer: Quantizer | None = None
    _timers: dict[int, Timer] = field(default_factory=dict)
    _timer_s: float = 0.0
    _to_send: list[tuple[int, int]] = field(default_factory=list)
    _to_repeat: list[tuple[int, int]] = field(default_factory=list)
    _first: bool = False
    _threshold: int = 0
    _counter: int = 0

    def begin(self, job: int, values: np.ndarray) -> None:
        """A slice of a job: its first window."""
        assert self.finished
        c = self.config
        self._quantizer = Quantizer(values, c.num_workers, c.packet_numel, c.window, self.noise)
        self.job, self._received, self._timer_s, self._first = job, set(), c.timeout_s, True
        self._threshold = self._threshold or c.timeout_threshold
        self._to_send = [(packet, self._pool_index(packet)) for packet in range(self._quantizer.batch)]

    @property
    def finished(self) -> bool:
        return self._quantizer is None or len(self._received) == self._quantizer.total

    @property
    def result(self) -> np.ndarray:
        assert self.finished
        assert self._quantizer is not None
        return self._quantizer.result

    def end(self) -> None:
        """The job slice is over: the next one's pool begins where this one's ended."""
        assert self._quantizer is not None
        self._shift = (self._shift + self._quantizer.total) % (2 * self.config.window)

    # -- the core's calls

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        for datagram in datagrams:
            self._receive(datagram.data)

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        packets, self._to_send = self._to_send, []
        wait_s = self._timer_s * (self.config.window if self._first else 1)
        for packet, pool_index in packets:
            repeated, slot = packet, self._slot(packet)
            if self.config.released_timers and self._first:
                repeated, slot = packet + 1, (packet + 1) % self.config.window
            self._timers[slot] = Timer(now_s + wait_s, repeated, pool_index)
        self._first &= not packets
        repeats, self._to_repeat = self._to_repeat, []
        return [self._datagram(packet, pool_index) for packet, pool_index in (*packets, *repeats)]

    def deadline_s(self) -> float | None:
        return min((each.due_s for each in self._timers.values()), default=None)

    def expire(self, now_s: float) -> None:
        """ResendPacketCallback."""
        for timer in self._timers.values():
            if timer.due_s > now_s:
                continue
            self.num_timeouts += 1
            self._counter += 1
            if self._counter >= self._threshold:
                self._counter, self._timer_s = 0, 2 * self._timer_s
                self._threshold += self.config.timeout_threshold_increment
            timer.due_s = now_s + self._timer_s
            assert self._quantizer is not None
            if timer.packet < self._quantizer.total:  # else the released thread reads past its tensor
                self._to_repeat.append((timer.packet, timer.pool_index))

    # -- packets

    def _receive(self, data: bytes) -> None:
        quantizer = self._quantizer
        if quantizer is None:
            self.num_wrong += 1
            return
        _, short_job, packet = HEADER.unpack_from(data)
        if packet in self._received or short_job != self.job & 0xFF or packet >= quantizer.total:
            self.num_wrong += 1  # the original reads past its bitmap for a packet that it never sent
            return
        start = HEADER.size + 2
        quantizer.postprocess(packet, data[start : start + 2], np.frombuffer(data, ">i4", offset=start + 2))
        self._received.add(packet)
        following = packet + quantizer.batch
        self._timers.pop(self._slot(following), None)
        if following < quantizer.total:
            self._to_send.append((following, self._pool_index(following)))

    def _slot(self, packet: int) -> int:
        """outstanding_pkt_index: whose timer it is."""
        assert self._quantizer is not None
        return packet % (self.config.window if self.config.released_timers else self._quantizer.batch)

    def _pool_index(self, packet: int) -> int:
        """PktId2PoolIndex."""
        window = self.config.window
        start = 2 * window * self.tid
        turn = (packet + self._shift) % (2 * window)
        return start + turn if turn < window else start + turn - window | 0x8000

    def _datagram(self, packet: int, pool_index: int) -> Datagram:
        """BuildPacket."""
        assert self._quantizer is not None
        numel = self.config.packet_numel
        size = 0 if numel < 64 else 1 if numel < 128 else 2 if numel < 256 else 3
        head = HEADER.pack((1 << 4) + size, self.job & 0xFF, packet) + struct.pack(">H", pool_index)
        return Datagram(self.switch, head + self._quantizer.preprocess(packet))


# -- a worker ----------------------------------------------------------------------------------------------------------


def slices(values: np.ndarray, num_threads: int) -> list[np.ndarray]:
    """FifoScheduler::GetJobSlice: each thread's part of a tensor."""
    share, rest = divmod(len(values), num_threads)
    starts = [thread * share + min(thread, rest) for thread in range(num_threads + 1)]
    return [values[start:stop] for start, stop in itertools.pairwise(starts)]


def reuses_slots_too_early(values: np.ndarray, config: Config) -> bool:
    """A float slice of more than half a window and less than a window: packet p + window uses the other set of p's
    slot, and is sent when the result of p + window - batch has come, whether or not that of p has. Where a packet is
    lost the program then takes p's retransmission for a first transmission: the client waits for ever, or gets a wrong
    sum."""
    packets = {-(-len(part) // config.packet_numel) for part in slices(values, config.num_worker_threads)}
    return values.dtype == np.float32 and any(config.window / 2 < number < config.window for number in packets)


class Worker:
    """Context: jobs one after the other, each shared among the threads."""

    def __init__(self, config: Config, switch: Address, *, seed: int) -> None:
        noise = np.random.default_rng([seed, config.rank])
        self.threads = [WorkerThread(config, tid, switch, noise) for tid in range(config.num_worker_threads)]
        self._job = 0
        self._busy: list[WorkerThread] = []

    def begin(self, values: np.ndarray) -> None:
        """AllReduceAsync."""
        assert not self._busy
        parts = slices(values, len(self.threads))
        for thread, part in zip(self.threads, parts, strict=True):
            if len(part):
                thread.begin(self._job, part)
                self._busy.append(thread)
        self._job += 1

    @property
    def finished(self) -> bool:
        return all(thread.finished for thread in self._busy)

    def end(self) -> np.ndarray:
        """WaitForAllJobs, and the sum."""
        for thread in self._busy:
            thread.end()
        found = np.concatenate([thread.result for thread in self._busy])
        self._busy = []
        return found


def exact_sum(values: Sequence[np.ndarray]) -> np.ndarray:
    """What the original returns for integers: 32 bits that wrap around."""
    return np.sum(np.stack(values).astype(np.int64), axis=0).astype(np.int32)


def float_bound(values: Sequence[np.ndarray], packet_numel: int, num_threads: int) -> np.ndarray:
    """How far a float of its sum may be from the exact one: each worker rounds to half a step of its packet's scale,
    whose product with a float has 24 bits, and so has the quotient."""
    bounds = []
    for parts in zip(*(slices(each, num_threads) for each in values), strict=True):
        stacked = np.abs(np.stack(parts).astype(np.float64))
        for start in range(0, stacked.shape[1], packet_numel):
            part = stacked[:, start : start + packet_numel]
            exponent = np.floor(np.log2(part.max())) + 1
            step = len(values) * 2.0**exponent / INT32_MAX
            bounds.append(len(values) * step / 2 + 2.0**-22 * part.sum(axis=0))
    return np.concatenate(bounds)


def drive(
    threads: Sequence[WorkerThread], sockets: Sequence[socket.socket], until: Callable[[], bool], limit_s: float
) -> None:
    """Worker threads on real sockets. Raises TimeoutError."""
    deadline_s = time.monotonic() + limit_s
    while True:
        for thread, opened in zip(threads, sockets, strict=True):
            for datagram in thread.transmit(time.monotonic()):
                opened.sendto(datagram.data, datagram.peer)
        if until():
            return
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise TimeoutError(f"jobs {[thread.job for thread in threads]} are not finished after {limit_s} s")
        due_s = min((each for thread in threads if (each := thread.deadline_s()) is not None), default=now_s + 0.05)
        ready, _, _ = select.select(sockets, [], [], max(0.0, min(0.05, due_s - now_s)))
        for thread, opened in zip(threads, sockets, strict=True):
            if opened in ready:
                data, peer = opened.recvfrom(4096)
                thread.receive([Datagram(peer, data)], time.monotonic())
            thread.expire(time.monotonic())


# -- a client ----------------------------------------------------------------------------------------------------------


def play(address: Address, host: str, config: Config, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One client from its start to its end: its session, its jobs, all on its own sockets."""
    with ExitStack() as stack:
        controller = stack.enter_context(Controller(address))
        switch = controller.setup_switch(config.rank, config.num_workers, host, config.packet_numel)
        sockets = []
        for tid in range(config.num_worker_threads):
            opened = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            opened.bind((host, 4000 + tid))
            sockets.append(opened)
        worker = Worker(config, switch, seed=config.rank)
        sums = []
        for each in values:
            worker.begin(each)
            drive(worker.threads, sockets, lambda: worker.finished, 60.0)
            sums.append(worker.end())
        controller.barrier(config.num_workers)  # of the test: whoever is done first would not answer the others' timers
        return sums


def play_in(pid: int, address: Address, host: str, config: Config, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A client that is a process in that process's network, as the original is one of its host. gRPC connects on
    threads that all channels of a process share, each in whatever namespace it was started."""
    command = ["nsenter", "-t", str(pid), "-n", sys.executable, "-m", "tests.switchml_client"]
    request = pickle.dumps((address, host, config, values))
    found = subprocess.run(command, input=request, stdout=subprocess.PIPE, check=True).stdout
    sums: list[np.ndarray] = pickle.loads(found)
    return sums


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(play(*pickle.load(sys.stdin.buffer))))

"""TCP goodput of one or many streams at once, at the speed of C.

Both ends are made inside the two namespaces and driven from this process. The sender's pages come from a file in
memory (sendfile(2)) and the receiver throws them away in the kernel (MSG_TRUNC, tcp(7)), so no byte is copied through
Python and the links, not this program, are what is measured.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from testbed.deployment.deployment import Deployment
from testbed.errors import CalibrationError
from testbed.system.kernel import realtime
from transports.channels.tcp_info import read_tcp_info

MAX_SUPERFRAME_BYTES: Final = 65_536
WARM_UP_S: Final = 0.1
_BLOCK_BYTES: Final = 1 << 20
_TIMEVAL: Final = struct.Struct("@ll")


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """One stream, from a node's address to another's."""

    source: str
    source_address: str
    target: str
    target_address: str


@dataclass(kw_only=True, slots=True)
class Stream:
    """An open connection that something is pumped into."""

    taken: socket.socket
    out: socket.socket

    @property
    def segment_bytes(self) -> int:
        """What a segment of it carries."""
        return self.out.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)

    @property
    def congestion(self) -> str:
        """What the kernel uses on it."""
        return self.out.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@contextmanager
def streaming(deployment: Deployment, flows: Sequence[Flow], *, timeout_s: float) -> Iterator[list[Stream]]:
    """Streams that carry all they can while within it. Raises OSError when one cannot be opened in time."""
    with ExitStack() as stack:
        descriptor = os.memfd_create("testbed-stream")
        stack.callback(os.close, descriptor)
        os.ftruncate(descriptor, _BLOCK_BYTES)
        streams = [_opened(deployment, flow, stack, timeout_s) for flow in flows]
        stop = threading.Event()
        pumps = [
            threading.Thread(target=_pump, args=(stream.out, descriptor, stop), name="stream-send", daemon=True)
            for stream in streams
        ]
        for pump in pumps:
            pump.start()
        try:
            yield streams
        finally:
            stop.set()
            for stream in streams:
                stream.taken.close()  # resets the connection, which ends its pump
            for pump in pumps:
                pump.join(timeout_s)


def _opened(deployment: Deployment, flow: Flow, stack: ExitStack, timeout_s: float) -> Stream:
    with deployment.hosts[flow.target].entered():
        listener = socket.create_server((flow.target_address, 0))
    with listener, deployment.hosts[flow.source].entered():
        out = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        out.bind((flow.source_address, 0))
        out.settimeout(timeout_s)
        out.connect(listener.getsockname())
        listener.settimeout(timeout_s)
        taken = stack.enter_context(listener.accept()[0])
    for end, option in ((out, socket.SO_SNDTIMEO), (taken, socket.SO_RCVTIMEO)):
        # The kernel's own timeout: Python's would turn every call into two.
        end.setblocking(True)
        end.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(max(1, int(timeout_s)), 0))
    return Stream(taken=taken, out=out)


def _pump(out: socket.socket, descriptor: int, stop: threading.Event) -> None:
    with realtime(), suppress(OSError):  # the receiver has seen enough, or gave up
        while not stop.is_set():
            os.sendfile(out.fileno(), descriptor, 0, _BLOCK_BYTES)


def receive_rate_bps(
    taken: socket.socket,
    *,
    warm_up_s: float,
    window_s: float,
    segment_bytes: float | None = None,
    stopping: threading.Event | None = None,
) -> float:
    """Payload over time between two arrivals, counting what arrived with the first but not with the last.

    HTB lets a whole super-frame go and then waits for as long as it takes at the rate, so the time from one arrival to
    the next belongs to the earlier one; at 10 Mbit/s one super-frame more or less is several percent.

    Where packets are lost or change their order, give `segment_bytes`, what a segment carries: segments are counted
    then, in whatever order they come and those that come twice. Behind a gap data waits in the kernel, and all of it,
    which may have arrived before the window, is received at once.

    Raises CalibrationError when the stream dries up, or `stopping` is set meanwhile.
    """
    with realtime():
        return _receive_rate_bps(taken, warm_up_s, window_s, segment_bytes, stopping)


def _receive_rate_bps(
    taken: socket.socket,
    warm_up_s: float,
    window_s: float,
    segment_bytes: float | None,
    stopping: threading.Event | None,
) -> float:
    buffer = bytearray(_BLOCK_BYTES)
    begun_s = time.monotonic()
    first_s: float | None = None
    received, num_before = 0.0, 0
    while True:
        try:
            count = taken.recv_into(buffer, _BLOCK_BYTES, socket.MSG_TRUNC)
        except BlockingIOError:
            raise CalibrationError("the measuring stream dried up") from None
        now_s = time.monotonic()
        if count == 0:
            raise CalibrationError("the measuring stream ended early")
        if stopping is not None and stopping.is_set():
            raise CalibrationError("the measurement was stopped")
        if first_s is None:
            # More than one super-frame at once is a backlog: this thread is late, and so would be its first time stamp.
            late = count > MAX_SUPERFRAME_BYTES and now_s - begun_s < 2 * warm_up_s
            if now_s - begun_s < warm_up_s or late:
                continue
            first_s = now_s
            num_before = read_tcp_info(taken).data_segments_in
        elif now_s - first_s >= window_s:
            if segment_bytes is not None:
                received = segment_bytes * (read_tcp_info(taken).data_segments_in - num_before)
            return received * 8 / (now_s - first_s)
        received += count


def goodputs_bps(deployment: Deployment, flows: Sequence[Flow], *, window_s: float, warm_up_s: float) -> list[float]:
    """Goodput of each stream while all of them run."""
    with streaming(deployment, flows, timeout_s=window_s + warm_up_s + 10) as streams:
        rates_bps = [0.0] * len(streams)

        def receive(index: int) -> None:
            # Fewer, larger reads: with many streams the readers would otherwise take the cores from the links.
            streams[index].taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _BLOCK_BYTES // 4)
            rates_bps[index] = receive_rate_bps(streams[index].taken, warm_up_s=warm_up_s, window_s=window_s)

        receivers = [threading.Thread(target=receive, args=(index,), daemon=True) for index in range(len(streams))]
        for receiver in receivers:
            receiver.start()
        for receiver in receivers:
            receiver.join()
    return rates_bps

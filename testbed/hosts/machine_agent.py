"""The agent of one machine of an emulation over several: makes what is on its machine, and measures the network between
it and the other.

Run as `python -m testbed.hosts.machine_agent SOCKET` in the network namespace that is the machine, by
testbed.hosts.machines or by a Ray actor there. SOCKET is a path at which the run waits for it; over it go JSON objects,
one per packet, a request and its answer in turns. It ends with the connection, or when it is ended, and what it has
made ends with it: namespaces live by processes of its own, links in namespaces.
"""

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from testbed.errors import MissingRequirementError
from testbed.hosts.holder import Holder
from testbed.hosts.naming import NamingThread
from testbed.system.idle import shallow_sleep
from testbed.system.kernel import realtime
from testbed.system.processes import RUN_ID_VARIABLE

MAX_PACKET_BYTES: Final = 128 * 1024
_COMMAND_TIMEOUT_S: Final = 30.0
_IP_MTU: Final = 14  # linux/in.h
_IP_MTU_DISCOVER: Final = 10
_IP_PMTUDISC_PROBE: Final = 3
_IP_UDP_HEADER_BYTES: Final = 28
_MIN_MTU: Final = 576
PROBE_TIMEOUT_S: Final = 0.2
_NUM_PROBES: Final = 3
_SO_RCVBUFFORCE: Final = 33  # asm-generic/socket.h
_SOL_UDP: Final = 17
_UDP_SEGMENT: Final = 103  # linux/udp.h
_UDP_GRO: Final = 104
_MOST_SEGMENTS: Final = 64
_MOST_AT_ONCE: Final = 2**16 - 1 - _IP_UDP_HEADER_BYTES
_AT_ONCE_S: Final = 2e-3
"""Of the rate: links between machines send no longer bursts."""
_RECEIVE_BUFFER_BYTES: Final = 32 * 2**20
_SILENCE_S: Final = 0.3
"""After which a stream that was sent has arrived."""
_CATCH_UP_S: Final = 5e-3
"""Of sending that did not get to run: more at once would be lost in queues that are long enough otherwise."""
_FEWEST_DATAGRAMS: Final = 10
_COOKIE_BYTES: Final = 16


class _Underlay:
    """This end of the network between the machines: echoes datagrams, and counts those of a stream."""

    def __init__(self, address: str) -> None:
        """Raises MissingRequirementError where the machine has not that address."""
        self._address = address
        self._echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
        self._sink.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        self._sink.settimeout(_SILENCE_S)
        try:
            self._echo.bind((address, 0))
            self._sink.bind((address, 0))
        except OSError as error:
            raise MissingRequirementError(f"{address} is no address of this machine ({error.strerror})") from error
        self._sent = False
        """Whether all of the stream is on its way."""
        self._received: list[tuple[float, int]] = []
        self._counting: threading.Thread | None = None
        threading.Thread(target=self._answer, name="underlay echo", daemon=True).start()

    @property
    def ports(self) -> tuple[int, int]:
        """Of the echo and of the sink."""
        return self._echo.getsockname()[1], self._sink.getsockname()[1]

    def _answer(self) -> None:
        with realtime():
            while True:
                data, source = self._echo.recvfrom(2**16)
                with suppress(OSError):  # a way back that is not there is the asker's to notice
                    self._echo.sendto(data[:_COOKIE_BYTES], source)

    def path_mtu(self, remote: str, port: int) -> int:
        """The longest IP packet that gets there uncut, 0 where none does."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing:
            probing.bind((self._address, 0))
            probing.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            try:
                probing.connect((remote, port))
            except OSError:  # there is no way
                return 0
            high = min(probing.getsockopt(socket.IPPROTO_IP, _IP_MTU), 2**16 - 1)
            if _arrives(probing, high):
                return high
            low = _MIN_MTU
            if not _arrives(probing, low):
                return 0
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _arrives(probing, middle) else (low, middle)
            return low

    def round_trips_s(self, remote: str, port: int, count: int, pause_s: float) -> list[float | None]:
        """Of small datagrams, one after the other; None where one is lost."""
        found: list[float | None] = []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing, realtime():
            probing.bind((self._address, 0))
            probing.connect((remote, port))
            for _ in range(count):
                begun_s = time.monotonic()
                echoed = _echoed(probing, _COOKIE_BYTES)
                found.append(time.monotonic() - begun_s if echoed else None)
                time.sleep(pause_s)
        return found

    def count(self) -> None:
        """Count the datagrams of the stream that comes next, beside what follows."""
        self._received, self._sent = [], False
        self._counting = threading.Thread(target=self._count, name="underlay sink", daemon=True)
        self._counting.start()

    def _count(self) -> None:
        total = 0
        with realtime():  # what waits in the buffer while another program runs would count as having come at once
            while True:
                try:
                    total += len(self._sink.recv(2**16))
                except TimeoutError:
                    if self._sent:
                        return
                    continue
                self._received.append((time.monotonic(), total))

    def received(self, warm_up_s: float) -> float:
        """Bit/s of payload that the stream brought after the warm-up, once all of it is sent; 0 where it brought
        nothing."""
        assert self._counting is not None, "count first"
        self._sent = True
        self._counting.join()
        begun_s = self._received[0][0] + warm_up_s if self._received else 0.0
        counted = [(at_s, total) for at_s, total in self._received if at_s >= begun_s]
        if len(counted) < _FEWEST_DATAGRAMS:
            return 0.0
        return 8 * (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0])

    def send(self, remote: str, port: int, payload_bytes: int, rate_bps: float, duration_s: float) -> None:
        """A stream of datagrams that long, at that rate of payload; it ends where there is no way any more."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
            stream.bind((self._address, 0))
            stream.connect((remote, port))
            # The kernel cuts what is handed to it at once into datagrams (udp(7)).
            stream.setsockopt(_SOL_UDP, _UDP_SEGMENT, payload_bytes)
            most = min(_MOST_SEGMENTS, _MOST_AT_ONCE // payload_bytes)
            at_once = bytes(max(1, min(most, int(rate_bps * _AT_ONCE_S / (8 * payload_bytes)))) * payload_bytes)
            chunk_s = 8 * len(at_once) / rate_bps
            next_s = time.monotonic()
            end_s = next_s + duration_s
            with suppress(OSError):  # what arrived is counted
                while (now_s := time.monotonic()) < end_s:
                    if now_s < next_s:
                        time.sleep(next_s - now_s)
                        continue
                    stream.send(at_once)
                    next_s = max(next_s + chunk_s, now_s - _CATCH_UP_S)


def _arrives(probing: socket.socket, packet_bytes: int) -> bool:
    return any(_echoed(probing, packet_bytes - _IP_UDP_HEADER_BYTES) for _ in range(_NUM_PROBES))


def _echoed(probing: socket.socket, num_bytes: int) -> bool:
    cookie = secrets.token_bytes(_COOKIE_BYTES)
    try:
        probing.send(cookie.ljust(num_bytes, b"\0"))
    except OSError:  # EMSGSIZE: longer than the interface lets out; or there is no way
        return False
    poll = select.poll()
    poll.register(probing, select.POLLIN)
    deadline_s = time.monotonic() + PROBE_TIMEOUT_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        if poll.poll(1000 * left_s):
            with suppress(OSError):  # ICMP said something
                if probing.recv(_COOKIE_BYTES) == cookie:
                    return True
    return False


def remove_links(namespace: str, interfaces: Sequence[str]) -> None:
    """Remove links between machines from a node's namespace, a path; those that are gone are gone.

    By itself such a link lasts as long as its namespace, and that as long as connections in it that nobody answers any
    more: minutes after the last process (tcp(7), tcp_orphan_retries). So long its socket would be the machine's.
    """
    subprocess.run(
        ["nsenter", f"--net={namespace}", "--", "ip", "-force", "-batch", "-"],
        input="".join(f"link delete {interface}\n" for interface in interfaces),
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )


class Agent:
    """Answers requests until the run is gone."""

    def __init__(self, connection: socket.socket, run_id: str) -> None:
        self._connection = connection
        self._run_id = run_id
        self._holders: list[Holder] = []
        self._between: Mapping[str, Sequence[str]] = {}
        self._naming: NamingThread | None = None
        self._underlay: _Underlay | None = None

    def serve(self) -> None:
        """Until the run closes its end."""
        try:
            while packet := self._packet():
                request = json.loads(packet)
                try:
                    answer = {"answer": self._request(request.pop("do"))(**request)}
                except MissingRequirementError as error:
                    answer = {"error": str(error)}
                self._connection.send(json.dumps(answer).encode())
        except BrokenPipeError:
            return
        finally:
            self._close()

    def _packet(self) -> bytes:
        try:
            return self._connection.recv(MAX_PACKET_BYTES)
        except ConnectionResetError:
            return b""

    def _request(self, name: str) -> Callable[..., Any]:
        own: Mapping[str, Callable[..., Any]] = {"hold": self._hold, "link": self._link, "open": self._open}
        if name in own:
            return own[name]
        underlay = self._underlay
        assert underlay is not None, "open first"
        measuring: Mapping[str, Callable[..., Any]] = {
            "path_mtu": underlay.path_mtu,
            "round_trips": underlay.round_trips_s,
            "count": underlay.count,
            "send": underlay.send,
            "received": underlay.received,
        }
        return measuring[name]

    def _hold(self, nodes: Sequence[str], names: Mapping[str, str], directory: str) -> dict[str, int]:
        """Make the namespaces of the nodes, in which hosts know each other by these names: a pid in each."""
        self._naming = NamingThread(names, Path(directory))
        self._holders = [Holder(node, naming=self._naming, run_id=self._run_id) for node in nodes]
        for holder in self._holders:
            holder.wait_ready()
        return {holder.name: holder.pid for holder in self._holders}

    def _link(self, lines: Sequence[str], between: Mapping[str, Sequence[str]]) -> None:
        """Make links by these lines for `ip`; `between` are the interfaces of those to the other machine, by node."""
        self._between = between
        done = subprocess.run(
            ["ip", "-batch", "-"],
            input="\n".join([*lines, ""]),
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise MissingRequirementError(f"cannot make the links: {done.stderr.strip()}")

    def _open(self, address: str) -> tuple[int, int]:
        self._underlay = _Underlay(address)
        return self._underlay.ports

    def _close(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever cleans up after the run asks for what is being done
        for holder in self._holders:
            if interfaces := self._between.get(holder.name):
                remove_links(f"/proc/{holder.pid}/ns/net", interfaces)
        for holder in self._holders:
            holder.release()
        for holder in self._holders:
            holder.end()
        if self._naming is not None:
            self._naming.close()


def main() -> None:
    """See the module's docstring."""
    (path,) = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))  # what it has made is removed then, too
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    with shallow_sleep():
        Agent(connection, os.environ[RUN_ID_VARIABLE]).serve()


if __name__ == "__main__":
    main()

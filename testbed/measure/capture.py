"""Writes what crosses chosen links to pcapng files, by Wireshark's dumpcap in the node's namespace.

Both directions of a link are seen at its first end (a worker's, where it has one), above the shaper: what is sent is
captured before it waits in the queue, what arrives after it has been on the link and before the delay line.
"""

import mmap
import re
import shutil
import signal
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.errors import MissingRequirementError, RunFailedError, SpecError
from testbed.hosts.base import Host, Process, ProcessSpec
from testbed.hosts.spawn import log_tail
from testbed.plan.addressing import Port
from testbed.system.processes import is_sleeping

_READY_TIMEOUT_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02
_HANDED_OVER_S: Final = 0.5
"""Within it the kernel has woken dumpcap for every packet: a block of its ring that is not full is handed over after
the read timeout that dumpcap asks for, 250 ms (TPACKET_V3's `tp_retire_blk_tov`)."""
# "Packets received/dropped on interface 'w1-eth0': 120/3 (pcap:3/dumpcap:0/flushed:0/ps_ifdrop:0) (97.6%)"
_COUNTS: Final = re.compile(r"Packets received/dropped on interface '[^']*': ([0-9]+)/([0-9]+)")


_BLOCK: Final = struct.Struct("=II")
"""Type and length of a block."""
_MIN_BLOCK_BYTES: Final = 12
_PACKET_BLOCKS: Final = (3, 6)


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """What one capture holds."""

    link: str
    path: Path
    num_packets: int
    """In the file; a super-frame is one."""
    num_dropped: int
    """Not in it: missed because dumpcap or the disk did not keep up, or received and not written before the end."""


def captured_links(links: Sequence[tuple[Port, Port]], names: Sequence[str]) -> dict[str, Port]:
    """By link, the port to listen at. Raises SpecError for a name that is no link's, with the links there are."""
    known = {f"{first.node}-{second.node}": first for first, second in links}
    reversed_ = {f"{second.node}-{first.node}": f"{first.node}-{second.node}" for first, second in links}
    chosen: dict[str, Port] = {}
    for name in names:
        link = reversed_.get(name, name)
        if link not in known:
            raise SpecError(f"--capture {name}: there is no such link; there are {', '.join(known)}")
        chosen[link] = known[link]
    return chosen


def require_dumpcap() -> None:
    """Raises MissingRequirementError with the fix."""
    if shutil.which("dumpcap") is None:
        raise MissingRequirementError(
            "--capture needs dumpcap: apt-get install --no-install-recommends wireshark-common"
        )


def counts_of(output: str) -> tuple[int, int]:
    """Packets received and dropped, from dumpcap's final lines. Raises ValueError when they do not say it."""
    match = _COUNTS.search(output)
    if match is None:
        raise ValueError("dumpcap did not say how many packets it received")
    return int(match[1]), int(match[2])


def packets_in(path: Path) -> int:
    """How many packets a pcapng file holds: blocks of type Enhanced Packet and Simple Packet that are whole (IETF draft
    pcapng, 4.3 and 4.4), of this machine's byte order. 0 where there is no file."""
    if not path.exists() or path.stat().st_size < _BLOCK.size:
        return 0
    count, at = 0, 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while at + _BLOCK.size <= len(data):
            kind, num_bytes = _BLOCK.unpack_from(data, at)
            if num_bytes < _MIN_BLOCK_BYTES or at + num_bytes > len(data):
                break  # cut off in the middle
            count += kind in _PACKET_BLOCKS
            at += num_bytes
    return count


class _Capture:
    """A running dumpcap."""

    def __init__(self, host: Host, link: str, interface: str, path: Path, *, snap_bytes: int) -> None:
        self._link = link
        self._path = path
        self._ready = threading.Event()
        self._process: Process = host.start(
            ProcessSpec(
                name=f"capture-{link}",
                argv=("dumpcap", "-q", "-i", interface, "-s", str(snap_bytes), "-w", str(path.absolute())),
                privileged=True,
            ),
            on_output=self._on_output,
        )

    def _on_output(self, line: str) -> None:
        if line.startswith("File: "):
            self._ready.set()

    def wait_ready(self) -> None:
        """Until packets are being captured. Raises MissingRequirementError with what dumpcap said."""
        waited_s = 0.0
        while not self._ready.wait(_POLL_S):
            waited_s += _POLL_S
            status = self._process.wait(0.0)
            if status is not None or waited_s >= _READY_TIMEOUT_S:
                state = "is not ready in time" if status is None else f"ended with status {status}"
                raise MissingRequirementError(
                    f"the capture of {self._link} {state}: {log_tail(self._process.log_path)}"
                )

    def check(self) -> None:
        """Raise RunFailedError if it has ended."""
        status = self._process.poll()
        if status is not None:
            raise RunFailedError(
                f"the capture of {self._link} ended with status {status}: {log_tail(self._process.log_path)}"
            )

    def wait_drained(self, deadline_s: float) -> None:
        """Until it sleeps, with nothing left to read of what was handed over to it, or the monotonic time is over.
        Stopped sooner it would leave in the kernel's ring what came last."""
        while time.monotonic() < deadline_s and not is_sleeping(self._process.pid):
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Have it write what it holds and say its counts."""
        self._process.send_signal(signal.SIGINT)

    def result(self) -> Captured:
        """After :meth:`stop`. Raises RunFailedError when it does not end well."""
        status = self._process.wait(_STOP_TIMEOUT_S)
        said = log_tail(self._process.log_path)
        try:
            num_packets, num_dropped = counts_of(said)
        except ValueError as error:
            raise RunFailedError(f"the capture of {self._link} (status {status}): {error}: {said}") from None
        num_written = packets_in(self._path)
        missing = max(0, num_packets - num_written)
        return Captured(link=self._link, path=self._path, num_packets=num_written, num_dropped=num_dropped + missing)


class Captures:
    """All captures of a run; those that end by themselves are noticed by :meth:`check`."""

    def __init__(
        self, hosts: Mapping[str, Host], ports: Mapping[str, Port], directory: Path, *, snap_bytes: int
    ) -> None:
        if ports:
            directory.mkdir(parents=True, exist_ok=True)
        self._running = [
            _Capture(hosts[port.node], link, port.interface, directory / f"{link}.pcapng", snap_bytes=snap_bytes)
            for link, port in ports.items()
        ]
        self.results: list[Captured] = []
        """After :meth:`close`."""
        for capture in self._running:
            capture.wait_ready()

    def check(self) -> None:
        """Raise RunFailedError if one has ended."""
        for capture in self._running:
            capture.check()

    def close(self) -> None:
        """End all, once they hold what has crossed their links until now, and read their counts."""
        if self._running:
            time.sleep(_HANDED_OVER_S)
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        for capture in self._running:
            capture.wait_drained(deadline_s)
        for capture in self._running:
            capture.stop()
        running, self._running = self._running, []
        self.results = [capture.result() for capture in running]


@contextmanager
def capturing(
    hosts: Mapping[str, Host], ports: Mapping[str, Port], directory: Path, *, snap_bytes: int
) -> Iterator[Captures]:
    """Capture while the body runs. Raises MissingRequirementError, RunFailedError for a capture that ended early."""
    captures = Captures(hosts, ports, directory, snap_bytes=snap_bytes)
    yield captures
    captures.close()

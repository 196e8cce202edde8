"""What a run tells its page: never more than the page takes, and never at the cost of the run.

Messages go through a socket that keeps so much and no more. What does not fit is dropped and counted, where a later
message says all that matters again; a page that has died is mentioned once. Callable from any thread; no call waits.
"""

import errno
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from testbed.experiment.experiment import Experiment
from testbed.hosts.spawn import Output, SpawnedProcess, log_tail, spawn
from testbed.live.messages import Iteration, Links, Machine, Message, Over, Past, Shaping, encode
from testbed.live.outcome import ending
from testbed.live.server import listen, require_framework
from testbed.live.translation import Translator, opening, translator_of
from testbed.record.summary import Summary

KEPT_BYTES: Final = 1 << 19
"""Of messages that the page has not taken: some ten seconds of a large network."""
MOST_WAITING: Final = 1000
"""Messages that are kept beside when the socket is full, because nothing later says the same."""
_REPEATED: Final = (Links, Iteration, Machine, Shaping)
"""A later one says what matters."""
_SO_SNDBUFFORCE: Final = 32
"""In socket(7): beyond net.core.wmem_max, for those who may."""
_CLOSE_S: Final = 1.0
_END_S: Final = 5.0


class Feed:
    """Implements testbed.record.status.Progress, as far as a page wants to know."""

    def __init__(self, connection: socket.socket, *, on_lost: Callable[[str], None]) -> None:
        """`connection` keeps the boundaries of packets. `on_lost` hears once why nothing is sent any more."""
        connection.setblocking(False)
        with suppress(PermissionError):
            connection.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, KEPT_BYTES)
        self.num_dropped = 0
        self.point = ""
        """Of a sweep: what the next run is."""
        self._connection = connection
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._translator: Translator | None = None
        self._epoch_s = 0.0
        self._lost = False

    def begin(
        self, plan: Mapping[str, Any], experiment: Experiment, *, run_id: str, setup: str, epoch_s: float
    ) -> None:
        """A run begins; `plan` as its record has it, `epoch_s` the zero of its tables on CLOCK_MONOTONIC."""

        def messages() -> Sequence[Message]:
            begins = opening(plan, experiment, run_id=run_id, setup=setup, point=self.point)
            self._translator, self._epoch_s = translator_of(begins, experiment), epoch_s
            return [begins]

        self._tell(messages)

    def rows(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of the record has got these rows."""
        self._translate(lambda translator: translator.rows(table, rows))

    def phase(self, name: str) -> None:
        """A phase begins."""
        self._translate(lambda translator: translator.phase(name, time.monotonic() - self._epoch_s))

    def iteration(self, phase: str, index: int, total: int, loss: float) -> None:
        """The rows say it."""

    def links(self, utilizations: Sequence[tuple[str, float]]) -> None:
        """The rows say it."""

    def interference(self, texts: Sequence[str]) -> None:
        """What others have done to the run's processes so far."""
        self._translate(lambda translator: translator.interference(texts, time.monotonic() - self._epoch_s))

    def end(self, summary: Summary) -> None:
        """The run is over and judged."""

        def messages() -> Sequence[Message]:
            ends = ending(summary)
            past = Past(point=self.point, outcome=ends.outcome, iteration_time_s=ends.iteration_time_s)
            return [ends, past] if self.point else [ends]

        self._tell(messages)

    def close(self) -> None:
        """Say that nothing comes any more; waits a moment for a page that is behind. Idempotent."""
        self._tell(lambda: [Over(num_dropped=self.num_dropped)])
        poll, deadline_s = select.poll(), time.monotonic() + _CLOSE_S
        problem = ""
        with self._lock:
            if not self._lost:
                poll.register(self._connection, select.POLLOUT)
            while not self._lost and self._waiting and (left_s := deadline_s - time.monotonic()) > 0:
                poll.poll(1000 * left_s)
                try:
                    self._flush()
                except OSError as error:
                    self._lost, problem = True, error.strerror or str(error)
            self._lost = True
            self._connection.close()
        if problem:
            self._on_lost(problem)

    def _translate(self, tell: Callable[[Translator], Sequence[Message]]) -> None:
        self._tell(lambda: [] if self._translator is None else tell(self._translator))

    def _tell(self, messages: Callable[[], Sequence[Message]]) -> None:
        if self._lost:
            return
        problem = ""
        with self._lock:
            try:
                for message in messages():
                    self._put(message)
            except OSError as error:
                problem = error.strerror or str(error)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with its page, the run goes on
                problem = f"{type(error).__name__}: {error}"
            self._lost = self._lost or bool(problem)
        if problem:
            self._on_lost(problem)

    def _put(self, message: Message) -> None:
        packet = encode(message).encode()
        if self._waiting:
            self._flush()
        if not self._waiting and self._sent(packet):
            return
        if isinstance(message, _REPEATED) or len(self._waiting) >= MOST_WAITING:
            self.num_dropped += 1
        else:
            self._waiting.append(packet)

    def _flush(self) -> None:
        while self._waiting and self._sent(self._waiting[0]):
            self._waiting.popleft()

    def _sent(self, packet: bytes) -> bool:
        """False where it does not fit now. Raises OSError where it never will."""
        try:
            self._connection.send(packet, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return False
            raise
        return True


@contextmanager
def live_page(*, address: str, port: int, say: Callable[[str], None]) -> Iterator[Feed]:
    """A page for the runs of this process, served by a process that ends with it; `say` hears where it is, and what
    becomes of it. Raises SpecError for an address that is none, MissingRequirementError before anything is made."""
    require_framework()
    listening, place = listen(address, port, option="--live-")
    log = os.memfd_create("live-page.log")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listening, theirs:
        process = _start(listening, theirs, log)
    ours.send(place.model_dump_json().encode())

    def lost(problem: str) -> None:
        tail = log_tail(process.log_path, num_lines=5)
        say("\n".join(each for each in (f"the live page has ended ({problem}); the run goes on", tail) if each))

    feed = Feed(ours, on_lost=lost)
    say(f"live page: {place.url}")
    try:
        yield feed
    finally:
        feed.close()
        if process.wait(_END_S) is None:
            process.stop(_CLOSE_S)
        if feed.num_dropped:
            say(f"the live page was not fast enough for {feed.num_dropped:,} messages; the record has everything")
        os.close(log)


def _start(listening: socket.socket, feed: socket.socket, log: int) -> SpawnedProcess:
    descriptors = (listening.fileno(), feed.fileno())
    # Of root's rights those to read Python's files wherever they are.
    rights = ["--inh-caps=-all", "--bounding-set=-all,+dac_read_search"] if os.geteuid() == 0 else []
    return spawn(
        "live-page",
        [
            *("setpriv", "--no-new-privs", *rights, "--"),
            # -P and PYTHONPATH: it imports from where this process does, not from the working directory.
            *(sys.executable, "-P", "-m", "testbed.live.server", *map(str, descriptors)),
        ],
        Output(Path(f"/proc/{os.getpid()}/fd/{log}"), None),
        environment={
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        },
        pass_fds=descriptors,
    )

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from testbed.errors import Interrupted
from testbed.system.interruptions import SIGNALS, held_back, interruptible

HEARD: list[int] = []


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.signal(number, lambda number, _: HEARD.append(number)) for number in SIGNALS}
    HEARD.clear()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    with held_back():
        os.kill(os.getpid(), number)
        assert HEARD == []
    assert [number] == HEARD
    os.kill(os.getpid(), number)
    assert [number, number] == HEARD


def test_of_several_the_first_counts() -> None:
    with held_back():
        for number in (signal.SIGHUP, signal.SIGINT):
            os.kill(os.getpid(), number)
    assert HEARD == [signal.SIGHUP]


def test_what_the_handler_raises_comes_out_of_the_block() -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedError

    signal.signal(signal.SIGTERM, interrupt)
    done = []

    def work() -> None:
        with held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append(True)

    with pytest.raises(InterruptedError):
        work()
    assert done == [True]


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with held_back():
        os.kill(os.getpid(), signal.SIGHUP)
    assert HEARD == []
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_another_thread_has_nothing_to_hold_back() -> None:
    seen = []

    def work() -> None:
        with held_back():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_signal_of_nobody_unwinds_the_block_and_is_delivered_at_its_end() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    undone = []

    def work() -> None:
        with interruptible():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except Interrupted as interrupted:
                os.kill(os.getpid(), signal.SIGINT)  # a second one does not disturb the cleaning
                undone.append(str(interrupted))
                raise

    with pytest.raises(KeyboardInterrupt):
        work()
    assert undone == ["SIGINT"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    os.kill(os.getpid(), signal.SIGTERM)
    assert HEARD == [signal.SIGTERM], "the handler of the caller's is its own again"


def test_a_handler_of_the_callers_own_stays() -> None:
    with interruptible():
        os.kill(os.getpid(), signal.SIGINT)
    assert HEARD == [signal.SIGINT]


def test_sigterm_ends_a_process_that_has_no_handler_for_it_once_all_is_undone() -> None:
    script = (
        "import os, signal\nfrom testbed.system.interruptions import interruptible\n"
        "with interruptible():\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n        os.write(1, b'undone')\n"
        "os.write(1, b'never')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"undone"), done.stderr


def test_elsewhere_than_on_the_main_thread_nothing_is_handled() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = []

    def work() -> None:
        with interruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]

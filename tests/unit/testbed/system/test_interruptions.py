import os
import signal
import threading
from collections.abc import Iterator

import pytest

from testbed.system.interruptions import SIGNALS, held_back

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

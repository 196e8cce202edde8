"""Signals while an aggregator is being set up; those that come to one that serves are in test___main__.py."""

import os
import signal
from collections.abc import Iterator

import pytest

from switch_agg.errors import Interrupted, UnsupportedError
from switch_agg.interruptions import SIGNALS, Ending


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    ending, made = Ending(), []

    def work() -> None:
        with ending.setting_up():
            os.kill(os.getpid(), number)
            made.append("whole")

    with pytest.raises(Interrupted, match=f"^{number.name}$"):
        work()
    assert made == ["whole"]
    assert ending.arrived == number


def test_of_several_the_first_counts() -> None:
    ending = Ending()
    for number in (signal.SIGHUP, signal.SIGINT):
        os.kill(os.getpid(), number)
    assert ending.arrived == signal.SIGHUP


def test_what_a_signal_made_fail_is_no_error_and_what_failed_by_itself_is() -> None:
    """Ctrl-C ends the compiler, too, and then "clang cannot build" would be said."""
    ending = Ending()

    def work(*, signalled: bool) -> None:
        with ending.setting_up():
            if signalled:
                os.kill(os.getpid(), signal.SIGINT)
            raise UnsupportedError("clang cannot build aggregate.bpf.c")

    with pytest.raises(UnsupportedError):
        work(signalled=False)
    with pytest.raises(Interrupted):
        work(signalled=True)


def test_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ending = Ending()
    os.kill(os.getpid(), signal.SIGHUP)
    assert ending.arrived is None
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN

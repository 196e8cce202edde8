"""Programs that serve a host: which of their answers is whose."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.errors import RunFailedError
from testbed.hosts import daemon
from testbed.hosts.daemon import Daemon


class Played:
    """A host, and the daemon's process on it, which says what a test has for each line."""

    def __init__(self, answers: list[list[str]]) -> None:
        self._answers = answers
        self._says: Callable[[str], None] = lambda _: None

    def start(self, spec: Any, *, on_output: Callable[[str], None]) -> Any:
        self._says = on_output
        on_output("ready")
        log_path = Path("/dev/null")
        return SimpleNamespace(
            name=spec.name, pid=1, log_path=log_path, tell=self._tell, poll=lambda: None, wait=lambda _: None
        )

    def _tell(self, line: str) -> None:
        for answer in self._answers.pop(0):
            self._says(answer)


def served(*answers: list[str]) -> Daemon:
    host: Any = Played(list(answers))
    return Daemon(host, "d", Path("/bin/d"), [], title="the daemon", consequence="nothing is served", listens=True)


def test_a_change_is_in_force_when_its_own_answer_has_come() -> None:
    one = served(["changed a"], ["refused b: no"], ["changed c"])
    one.change("a:1")
    with pytest.raises(RunFailedError, match="the daemon answers b:1 with: refused b: no"):
        one.change("b:1")
    one.change("c:1")


def test_an_answer_that_comes_too_late_does_not_pass_for_the_next_one_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_READY_TIMEOUT_S", 0.05)
    one = served([], ["changed status", "changed counters"], ["changed status"])
    with pytest.raises(RunFailedError, match=r"the daemon answers status with: nothing within 0\.05 s"):
        one.change("status")
    one.change("counters")
    one.change("status")

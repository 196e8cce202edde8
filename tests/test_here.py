import signal
import sys
from pathlib import Path

import pytest

from tests.here import Done, invoke, summary_of


def test_it_says_and_ends_as_the_console_script_does(tmp_path: Path) -> None:
    known, handler = list(sys.argv), signal.getsignal(signal.SIGINT)
    done = invoke("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    wrong = tmp_path / "spec.yaml"
    wrong.write_text("name: x\nworkers: none\n")
    refused = invoke("plan", wrong)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "workers" in refused.stderr
    assert invoke("no-such-command").returncode == 2
    assert sys.argv == known
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize(("status", "outcome"), [(0, "invalid"), (4, "valid"), (0, "failed"), (1, "failed")])
def test_a_summary_and_an_exit_code_must_say_the_same(status: int, outcome: str) -> None:
    assert summary_of(Done(4, '{"outcome": "invalid", "reasons": []}', "")) == {"outcome": "invalid", "reasons": []}
    with pytest.raises(AssertionError):
        summary_of(Done(status, f'{{"outcome": "{outcome}", "reasons": []}}', ""))

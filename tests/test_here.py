import signal
import sys
from pathlib import Path

from tests.here import invoke


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

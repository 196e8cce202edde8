"""Who may talk to the template of a process; processes in namespaces are in tests/integration/test_processes.py."""

import os
import subprocess
import sys
from pathlib import Path

from testbed.hosts.fork_client import _Template

FORKS = """
import multiprocessing, signal, sys
from pathlib import Path
from testbed.hosts.fork_client import _TEMPLATES
from testbed.hosts.fork_server import ForkRequest
from testbed.hosts.spawn import Output

def forks(name):
    signal.alarm(60)  # ends a process that waits for ever
    template = _TEMPLATES.current()
    template.preload([]).result(50.0)
    child = template.fork(ForkRequest(name=name, argv=["true"]), Output(Path(sys.argv[1], name), None))
    assert child.wait(50.0) == 0

forks("before")
child = multiprocessing.get_context("fork").Process(target=forks, args=("in the child",))
child.start()
child.join()
assert child.exitcode == 0, child.exitcode
forks("after")
"""


def test_a_forked_child_has_a_template_of_its_own_and_leaves_its_parents_alone(tmp_path: Path) -> None:
    """A notebook that has made a run may hand the next one to a ProcessPoolExecutor."""
    argv = [sys.executable, "-c", FORKS, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200.0, check=False)
    assert done.returncode == 0, done.stderr


def test_a_template_that_answers_what_nobody_requested_is_ended_and_nobody_waits_for_it() -> None:
    template = _Template(os.environ, sys.path)
    try:
        template._ours.send(b'{"import": []}')
        template._reader.join(60.0)
        assert "ended with status" in (template.failure or "")
        template.preload([]).result(1.0)
    finally:
        template.close()

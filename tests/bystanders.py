"""What is none of a run's business and must survive it: a foreign process, and a foreign namespace with links in it."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from testbed.system.kernel import network_namespace
from testbed.system.processes import ProcessIdentity


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s, f"not within a minute: {what}"
        time.sleep(0.01)


@contextmanager
def standing_by() -> Iterator[list[ProcessIdentity]]:
    """The two processes; the second one's namespace has a veth pair named as a run's links are."""
    processes = [
        subprocess.Popen(["sleep", "600"]),
        subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link add w0-eth0 type veth peer w1-eth0; sleep 600"]),
    ]
    try:
        wait_until(lambda: network_namespace(processes[1].pid) != network_namespace(os.getpid()), "a foreign namespace")
        yield [identity for process in processes if (identity := ProcessIdentity.of(process.pid))]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def assert_unharmed(bystanders: list[ProcessIdentity]) -> None:
    assert [identity.alive() for identity in bystanders] == [True, True]
    command = ["nsenter", f"--net=/proc/{bystanders[1].pid}/ns/net", "ip", "-o", "link"]
    assert "w0-eth0" in subprocess.run(command, capture_output=True, text=True, check=True).stdout

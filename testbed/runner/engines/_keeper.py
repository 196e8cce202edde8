"""Keeps a run going while its lease lasts, and ends it when that ends or nobody holds its standard input any more.

    python _keeper.py LOCK GRACE_S DEADLINE_S COMMAND...

Standard input has a deadline on each line, in seconds of CLOCK_MONOTONIC. The descriptor LOCK is handed on, so that the
lock that its file description holds lasts as long as the keeper or the run does. A process of its own, with nothing but
the standard library: it must work when whoever started it hangs or has been killed.
"""

import os
import select
import signal
import subprocess
import sys
import time

ENDED = 75
"""Exit code of a run that was ended; otherwise its own."""


def keep(process: "subprocess.Popen[bytes]", deadline_s: float) -> bool:
    """Whether the process came to its end before its lease did."""
    ended = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(0, select.POLLIN | select.POLLHUP)
    rest = b""
    try:
        while (left_s := deadline_s - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poll.poll(1000 * left_s)}
            if ended in ready:
                return True
            if 0 in ready:
                data = os.read(0, 4096)
                if not data:
                    return False
                *lines, rest = (rest + data).split(b"\n")
                deadline_s = max([deadline_s, *map(float, lines)])
        return False
    finally:
        os.close(ended)


def end(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """SIGTERM, which removes what the run made, and SIGKILL to it and its group after the grace."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(lock: int, grace_s: float, deadline_s: float, command: list[str]) -> int:
    """The exit code of the command, 128 + n if signal n ended it, or ENDED."""
    # With the keeper ends the run, too, whatever ends the keeper.
    argv = ["setpriv", "--pdeathsig", "TERM", "--", *command]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[lock], start_new_session=True)
    if keep(process, deadline_s):
        status = process.wait()
        return status if status >= 0 else 128 - status
    end(process, grace_s)
    return ENDED


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))

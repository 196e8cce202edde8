"""Threads whose errors are raised where they are joined."""

import threading
from collections.abc import Callable


class RaisingThreads:
    """Join those that were started."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, work: Callable[[], None], *, name: str) -> None:
        """Begin one more."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 (raised again by join(), on the thread that decides the exit status)
                self._errors.append(error)

        self._threads.append(threading.Thread(target=run, name=name))
        self._threads[-1].start()

    def join(self) -> None:
        """When all have ended. Raises what the first that failed has raised."""
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

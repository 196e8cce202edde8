"""What a command's workers print, line by line, each with its worker's name before it."""

import threading
from collections.abc import Callable, Mapping
from typing import Final, TextIO

COLORS: Final = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Of the workers' names in turn: SGR codes of ECMA-48, without red."""
_ERROR_COLOR: Final = 31


class Streams:
    """Standard output and standard error of all workers, kept apart, never two in one line. Any thread may call it."""

    def __init__(
        self,
        *,
        output: TextIO,
        error: TextIO,
        environment: Mapping[str, str],
        above: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Names are coloured on a terminal, unless NO_COLOR is set (no-color.org). `above` is offered what goes to a
        terminal and says whether it has written it, above a live display."""
        self._streams: dict[bool, TextIO | None] = {False: output, True: error}
        self._terminals = {kind for kind, stream in ((False, output), (True, error)) if stream.isatty()}
        self._colors = not environment.get("NO_COLOR")
        self._above = above
        self._lock = threading.Lock()

    def write(self, rank: int, line: str, error: bool) -> None:
        """Write one line, given without its end."""
        terminal = error in self._terminals
        text = f"{self._name(rank, error=error, colored=terminal and self._colors)} {line}\n"
        with self._lock:
            stream = self._streams[error]
            if stream is None:
                return
            try:
                if terminal and self._above(text):
                    return
                stream.write(text)
                stream.flush()
            except OSError:  # `| head` has seen enough, or the terminal is gone; the logs have the rest
                self._streams[error] = None

    def _name(self, rank: int, *, error: bool, colored: bool) -> str:
        if not colored:
            return f"[w{rank}]"
        name = f"\x1b[{COLORS[rank % len(COLORS)]}m[w{rank}]\x1b[0m"
        return f"{name}\x1b[{_ERROR_COLOR}m!\x1b[0m" if error else name

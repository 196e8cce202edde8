"""Where tables go."""

import os
from typing import Final

from rich.console import Console

WIDTH: Final = 200
"""Of what is no terminal: every table fits."""


def standard_output() -> Console:
    """Standard output: as wide as the terminal, or as COLUMNS says, or wide enough for a file or a pipe."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDTH)

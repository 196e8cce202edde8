"""What a reader of numbers should know beside them: what was taken for what, what was left out."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text


def render_notes(notes: Iterable[str], console: Console) -> None:
    """A line each; nothing for none."""
    for each in notes:
        console.print(Text.assemble(("note", "yellow"), f" {each}"), highlight=False, soft_wrap=True)

"""A figure that shows itself in a notebook, with the verdict of what it was drawn from above it."""

from pathlib import Path
from typing import Any, Final

from testbed.errors import SpecError
from testbed.record.writer import replace_bytes
from testbed.report.drawing import png, svg
from testbed.report.figures import Figure

_SUFFIXES: Final = (".svg", ".png")


class Picture:
    """One figure. It is drawn when it is shown or saved, and its verdict stays with it in both."""

    def __init__(self, name: str, figure: Figure, caption: str) -> None:
        self.name = name
        self.figure = figure
        """Axes and series, in their own numbers (testbed.report.figures)."""
        self.caption = caption

    def svg(self) -> str:
        """As SVG, 900 pixels wide, dark on white."""
        return svg(self.figure, caption=self.caption)

    def save(self, path: str | Path) -> Path:
        """Write it as SVG or PNG, by the file's name. Raises SpecError for another, and MissingRequirementError where
        it cannot be written."""
        file = Path(path)
        if file.suffix not in _SUFFIXES:
            raise SpecError(f"{file}: a picture is saved as {' or '.join(_SUFFIXES)}")
        drawn = self.svg()
        replace_bytes(file, drawn.encode() if file.suffix == ".svg" else png(drawn))
        return file

    def __repr__(self) -> str:
        return f"<Picture {self.name}: {self.figure.title}; {self.caption}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What IPython shows (https://ipython.readthedocs.io/en/stable/config/integrating.html)."""
        return {"image/svg+xml": self.svg(), "text/plain": repr(self)}

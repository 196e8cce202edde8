"""Who draws figures: Vega's own JavaScript for pages, and the same engine for SVG and PNG beside them.

Both come from the package vl-convert-python, which holds Vega and an engine to run it: nothing is loaded from
elsewhere, and no browser is needed. Putting Vega's modules together into one script takes seconds, so it is done once
for each version of the package, by a process of its own, and kept in the user's cache.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from switch_agg.native.cache import cache_directory
from testbed.errors import MissingRequirementError
from testbed.record.writer import replace_bytes, replace_text
from testbed.report import vega
from testbed.report.figures import Figure

_PACKAGE: Final = "vl-convert-python"
_BUNDLE: Final = "import vl_convert; print(vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;'))"
_LONGEST_S: Final = 120.0
"""It takes two seconds on an idle core."""
_WIDTH: Final = 900
"""Pixels of a picture."""
_DOTS: Final = 2.0
"""Dots of a PNG for each pixel."""


def script() -> str:
    """Vega as one script. Raises MissingRequirementError where it cannot be made."""
    kept = cache_directory() / f"vega-{version(_PACKAGE)}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        pass
    try:
        made = subprocess.run(
            [sys.executable, "-c", _BUNDLE], capture_output=True, text=True, check=True, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired:
        raise MissingRequirementError(f"{_PACKAGE} did not put Vega together within {_LONGEST_S:g} s") from None
    except subprocess.CalledProcessError as failure:
        raise MissingRequirementError(f"{_PACKAGE} cannot put Vega together: {failure.stderr.strip()[-400:]}") from None
    # It ends up inside an element of the page.
    text = made.stdout.strip().replace("</script", "<\\/script")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        made_by_us = kept.with_name(f"{kept.stem}.{os.getpid()}.js")  # others may be about to make it
        replace_text(made_by_us, text)
        made_by_us.replace(kept)
    except OSError as failure:
        raise MissingRequirementError(f"cannot write {kept}: {failure.strerror}; set XDG_CACHE_HOME") from failure
    return text


def svg(figure: Figure, *, width: int = _WIDTH, caption: str = "") -> str:
    """A figure as a picture, so many pixels wide, dark on white, with a caption above it."""
    import vl_convert

    drawn: str = vl_convert.vega_to_svg(vega.on_paper(figure, width=width, caption=caption))
    return drawn


def png(drawn: str) -> bytes:
    """A picture that :func:`svg` has drawn, as pixels."""
    import vl_convert

    pixels: bytes = vl_convert.svg_to_png(drawn, scale=_DOTS)
    return pixels


def write_pictures(
    page: Path, figures: Mapping[str, Figure], *, is_ours: Callable[[str], bool] = lambda _: True
) -> list[Path]:
    """Each figure as SVG and PNG, for papers, in the folder `<page's name>-figures` beside the page; returns their
    paths. Pictures of figures that there are no more are removed, if `is_ours` says of a figure's name that such a page
    may have made it. Raises MissingRequirementError."""
    folder = page.with_name(f"{page.stem}-figures")
    written: list[Path] = []
    if not figures and not folder.exists():
        return []
    try:
        folder.mkdir(exist_ok=True)
        for name, figure in figures.items():
            drawn = svg(figure)
            for path, content in (
                (folder / f"{name}.svg", drawn.encode()),
                (folder / f"{name}.png", png(drawn)),
            ):
                replace_bytes(path, content)
                written.append(path)
        for path in {*folder.glob("*.svg"), *folder.glob("*.png")} - set(written):
            if is_ours(path.stem):
                path.unlink()
    except OSError as failure:
        raise MissingRequirementError(f"cannot write {folder}: {failure.strerror}") from failure
    return written

"""The documentation as a site (`make docs`): the pages of this folder, a reference of specs made from their schema, and
one of the packages made from their docstrings."""

import importlib.metadata
import itertools
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from site_reference import write_reference  # noqa: E402  (it lies beside this file)

project = "ina-testbed"
author = "the authors of ina-testbed"
release = version = importlib.metadata.version("ina-testbed")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"{project} {version}"
html_show_sourcelink = False
default_role = "code"  # what stands between backticks in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}


def setup(app: Sphinx) -> None:
    """What is made, and what is changed on its way from the repository to the site."""
    app.connect("builder-inited", lambda _app: write_reference(HERE / "reference"))
    app.connect("source-read", _for_the_site)
    app.connect("autodoc-process-docstring", _from_plain_text)


def _for_the_site(_app: Sphinx, name: str, source: list[str]) -> None:
    """The first page begins with the README, decisions are listed on a page of theirs alone, and links to what is not
    on the site (specs, sources) are text."""
    text = source[0]
    if name == "index":
        text = (HERE.parent / "README.md").read_text().replace("](docs/", "](") + text
    elif re.fullmatch(r"decisions/\d+.*", name):
        text = f"---\norphan: true\n---\n{text}"
    folder = (HERE / name).parent

    def linked(found: re.Match[str]) -> str:
        target = found["target"].partition("#")[0]
        outside = target and ":" not in target and not (folder / target).resolve().is_relative_to(HERE)
        missing = target and ":" not in target and not (folder / target).exists()
        return found["text"] if outside or missing else found[0]

    source[0] = re.sub(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s]+)\)", linked, text)


def _from_plain_text(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Docstrings are plain text with code between backticks: a paragraph with lines that are indented or drawn is shown
    as it stands, and in the others no character but the backtick means anything."""
    found: list[str] = []
    for drawn, paragraph in itertools.groupby(lines, key=bool):
        if not drawn:
            continue
        text = [line for line in paragraph if line != "::"]
        if any(line[0] in " +|-" for line in text):
            found += ["::", "", *(f"    {line}" for line in text)]
        else:
            found += [_escaped(line) for line in text]
        found.append("")
    lines[:] = found


def _escaped(line: str) -> str:
    return re.sub(r"(`[^`]*`)|([|*_\\])", lambda found: found[1] or f"\\{found[2]}", line)

"""What comes with the package to begin with: specs, papers' specs, scripts as users write them, dashboards."""

import ast
import json
import re
import shutil
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.papers import shipped_papers
from testbed.experiment.shipped import shipped_folder, shipped_specs


class Example(NamedTuple):
    """One file, or one folder of files that belong together."""

    name: str
    kind: str
    """spec, paper, script or dashboards."""
    about: str
    path: Path


def examples() -> list[Example]:
    """All of them; none where the package is not installed with them. Raises SpecError where a paper's is damaged."""
    specs = [Example(name, "spec", _comment(path), path) for name, path in shipped_specs().items()]
    papers = [Example(paper.name, "paper", paper.title, paper.folder) for paper in shipped_papers()]
    return [*specs, *papers, *_scripts(), *_dashboards()]


def copy_example(name: str, folder: Path) -> Path:
    """Copy one into a folder, which is made if need be; where it is then.

    Raises SpecError for a name that there is not and for what is there already, MissingRequirementError where nothing
    can be written.
    """
    known = {example.name: example for example in examples()}
    if name not in known:
        raise SpecError(f"{name}: there is no such example; `testbed examples` lists them")
    source, target = known[name].path, folder / known[name].path.name
    if target.exists() or target.is_symlink():
        raise SpecError(f"{target} is there already and is left as it is; remove it, or name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    except OSError as failure:
        raise MissingRequirementError(f"cannot write {target}: {failure.strerror or failure}") from failure
    return target


def _beside(name: str, in_checkout: str) -> Path:
    """A folder of the package; in a checkout it lies elsewhere."""
    folder = shipped_folder() or Path()
    installed = folder / name
    return installed if installed.is_dir() else folder.parent / in_checkout


def _scripts() -> Iterator[Example]:
    about = {".py": _docstring, ".sh": _comment, ".ipynb": _heading}
    for path in sorted(_beside("examples", "examples").glob("*.*")):
        if path.suffix in about:
            yield Example(path.name, "script", about[path.suffix](path), path)


def _dashboards() -> Iterator[Example]:
    path = _beside("dashboards", "docker/grafana/dashboards")
    if path.is_dir():
        yield Example(path.name, "dashboards", "Grafana's, for a Prometheus that scrapes runs", path)


def _comment(path: Path) -> str:
    """The first sentence of the comment that a file begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    words = " ".join(
        line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines) if line[1] != "!"
    )
    sentence = re.match(r".*?[.?](?= |$)", words)
    return sentence[0] if sentence else words


def _docstring(path: Path) -> str:
    found = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return found.partition("\n")[0]


def _heading(path: Path) -> str:
    """Of a notebook."""
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
    return "".join(first).partition("\n")[0].lstrip("# ")

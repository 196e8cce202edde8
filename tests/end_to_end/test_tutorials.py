"""The tutorials' commands, as they stand there: they run, and make the pictures that are shown.

That they are accepted and can be planned is tests/test_documentation.py; here each takes up to a minute, which is what
they promise.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.axes import ROOT

pytestmark = [pytest.mark.privileged, pytest.mark.slow, pytest.mark.timeout(600)]

TUTORIALS = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.stem != "README")


def words(picture: str) -> set[str]:
    """What is written in it that is no number and no verdict: titles, legends, names of points."""
    written = re.findall(r"<(?:text|tspan)[^>]*>([^<]+)<", picture)
    return {text for text in written if not re.fullmatch(r"[\d.,% ]+", text)} - {"degraded: hollow"}


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_its_commands_make_its_picture(tmp_path: Path, page: Path) -> None:
    text = page.read_text()
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    assert commands
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # `python` is the one that has torch
    for command in commands:
        program, *arguments = shlex.split(command, comments=True)
        assert program == "testbed"
        done = subprocess.run(
            [sys.executable, "-m", "testbed", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode in (0, 4), done.stderr
    (shown,) = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert text.rstrip().endswith(f"({shown})"), "it ends in its picture"
    kept = words((page.parent / shown).read_text())
    made = [words(picture.read_text()) for picture in tmp_path.glob("results/*/*-figures/*.svg")]
    assert kept in made

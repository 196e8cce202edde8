"""The help of each command names exactly the benchmarks that there are."""

import importlib
import re

import pytest
from typer.testing import CliRunner

from testbed.cli import app


@pytest.mark.parametrize("part", ["links", "transports", "training", "aggregation", "containers"])
def test_help_names_every_benchmark(part: str) -> None:
    shown = CliRunner().invoke(app, ["bench", part, "--help"], env={"COLUMNS": "80"}).stdout
    listed = re.search(r"--only <str>(.*?)--(json|runtime)", shown, re.DOTALL)
    assert listed is not None
    words = "".join(listed[1].split()).partition("these:")[2].rstrip(".")
    module = importlib.import_module(f"testbed.benchmarks.{part}")
    assert words.split(",") == list(module.benchmarks() if part == "links" else module.BENCHMARKS)

"""The command's help names every benchmark there is."""

from typer.testing import CliRunner

from testbed.benchmarks.transports import BENCHMARKS
from testbed.cli import app


def test_the_help_names_every_benchmark() -> None:
    shown = CliRunner().invoke(app, ["bench", "transports", "--help"], env={"COLUMNS": "200"}).stdout.split()
    for name in BENCHMARKS:
        assert name in "".join(shown)

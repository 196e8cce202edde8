"""Lines of `run`, `exec` and `sweep` that are refused before anything is deployed."""

import pytest
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import SpecError


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "experiments/quickstart.yaml", "--set", "link.rate=fast"], "link.rate: 'fast' is not a rate"),
        (["run", "experiments/quickstart.yaml", "--runtime", "jail"], "runtime: "),
        (["exec", "--link", "1gbit,", "--", "true"], "--link 1gbit,: write RATE"),
        (["exec", "--backend", "nccl", "--", "true"], "workload.backend: "),
        (["sweep", "experiments/quickstart.yaml"], "nothing varies; list values under `sweep`"),
    ],
)
def test_what_is_wrong_names_its_field(argv: list[str], words: str) -> None:
    done = CliRunner().invoke(app, argv)
    assert isinstance(done.exception, SpecError)
    assert words in str(done.exception)

"""Every row of a run of all benchmarks is on its page, and what is no such run is refused."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.benchmarks.page import measured_page, read_rows
from testbed.benchmarks.targets import Journal, Row, target_row
from testbed.errors import CalibrationError, SpecError


def links() -> Iterator[Row]:
    yield target_row("rate: off by", 0.004, 0.005, {})
    yield target_row("total", 17.9, 18.0, {}, at_least=True)
    yield target_row("CPU", 2.0, None, {"degraded": ["w0: it waited"]})
    yield target_row("speed", 2.0, 3.0, {"degraded": ["w0: it waited"]}, at_least=True)
    raise CalibrationError("too slow")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    stream = io.StringIO()
    with Journal(stream=stream, tell=lambda _: None) as journal:
        journal.measure("links, rate", links, part="links", benchmark="rate")
    file = tmp_path / "bench.json"
    file.write_text(stream.getvalue())
    return file


def test_every_row_is_on_the_page_and_what_missed_says_so(written: Path) -> None:
    page = measured_page(read_rows(written))
    assert "## Links\n" in page
    assert "| rate: off by | 0.004 | ≤ 0.005 |  |" in page
    assert "| total | 17.9 | ≥ 18 | missed |" in page
    assert "| CPU | 2 |  | degraded |" in page
    assert "| speed | 2 | ≥ 3 | missed, degraded |" in page
    assert page.count("\n- w0: it waited\n") == 1, "what rows have in common is said once"
    assert "- links, rate: too slow" in page
    assert f"{json.loads(written.read_text())['environment']['num_cores']} cores" in page


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 2, "rows": [], "environment": {}}'])
def test_what_is_no_run_of_all_benchmarks_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bench.json"
    file.write_text(text)
    with pytest.raises(SpecError, match=r"not written by `testbed bench all"):
        read_rows(file)
    with pytest.raises(SpecError, match="No such file"):
        read_rows(tmp_path / "other.json")

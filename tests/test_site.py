"""What of the site is made (docs/site_reference.py); that the whole is built without a warning is `make docs`."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from testbed.experiment.sweep import sweep_schema

SOURCE = Path(__file__).parents[1] / "docs" / "site_reference.py"


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_reference", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_key_of_a_spec_has_its_section_with_what_is_allowed(site: ModuleType) -> None:
    schema = sweep_schema()
    page = site.spec_page(schema)
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    assert list(sections) == list(schema["properties"])
    assert "One alone has nobody to exchange gradients with" in sections["workers"]
    assert "Integer, at least 1, at most 64, default `4`." in sections["workers"]
    assert "| `rate` | such as `100mbit` | `100000000.0` | Line rate, 1mbit to 800gbit. (bits per second) |" in page
    assert "**parameter_server**" in sections["collective"]
    assert "| `servers` | integer, at least 1, at most 64 | `1` |" in sections["collective"]


def test_every_command_has_its_help_and_examples_are_blocks(site: ModuleType) -> None:
    page = site.commands_page()
    assert "## `testbed run`" in page
    assert "### `testbed trace record`" in page
    assert "\n    testbed run experiments/quickstart.yaml --prometheus\n" in page


def test_packages_are_whole_but_for_what_is_private(site: ModuleType) -> None:
    page = site.package_page("transports", ["transports"])
    assert ".. automodule:: transports.collectives.ring\n" in page
    assert "transports.channels._tcp" not in page


def test_what_has_not_changed_is_not_written_again(site: ModuleType, tmp_path: Path) -> None:
    site.write_reference(tmp_path)
    written = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert set(written) == {"spec.md", "commands.md", "testbed.md", "transports.md", "switch_agg.md"}
    site.write_reference(tmp_path)
    assert written == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

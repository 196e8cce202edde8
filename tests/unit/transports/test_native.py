import logging
from pathlib import Path

import pytest

from switch_agg.native.build import build
from transports.channels._tcp import program
from transports.compression._native import blocks, onebit
from transports.errors import UnsupportedError
from transports.native import REQUIRED_VARIABLE, load_library

LIBRARIES = [(program, "tcp.c"), (blocks, "blocks.c"), (onebit, "onebit.c")]


@pytest.fixture(autouse=True)
def without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_a_compiler_there_is_none_and_the_log_says_what_that_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.c").write_text("int nothing;\n")
    with caplog.at_level(logging.WARNING):
        assert load_library(lambda: build(tmp_path / "a.c", "library"), "adding takes longer") is None
    assert "adding takes longer: no cc or gcc to build a.c with: apt-get install" in caplog.text


@pytest.mark.parametrize(("module", "name"), LIBRARIES)
def test_where_it_is_required_nothing_falls_back_to_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    """A user's script in a container of an image that lacks them would measure numpy, and nobody would know."""
    (tmp_path / name).write_text("int nothing;\n")
    monkeypatch.setattr(module, "SOURCE", tmp_path / name)
    monkeypatch.setenv(REQUIRED_VARIABLE, "1")
    library = module.library.__wrapped__  # type: ignore[attr-defined] # others of this process have loaded it
    with pytest.raises(UnsupportedError, match=f"no cc or gcc to build {name}"):
        library()

"""How wide tables are."""

import pytest

from transports.bench.terminal import WIDTH, standard_output


def test_a_pipe_takes_whole_tables_unless_it_is_given_a_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert standard_output().width == WIDTH
    monkeypatch.setenv("COLUMNS", "90")
    assert standard_output().width == 90
    standard_output().print("reported")
    assert capsys.readouterr().out == "reported\n"

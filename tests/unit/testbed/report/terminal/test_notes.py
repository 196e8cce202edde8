import io

from rich.console import Console

from testbed.report.terminal.notes import render_notes


def test_a_note_is_a_line_and_no_markup() -> None:
    stream = io.StringIO()
    render_notes(("w0 is [/x]", "all is well"), Console(file=stream))
    assert stream.getvalue() == "note w0 is [/x]\nnote all is well\n"


def test_nothing_to_say_prints_nothing() -> None:
    stream = io.StringIO()
    render_notes((), Console(file=stream))
    assert stream.getvalue() == ""

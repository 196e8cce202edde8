import errno
import io
import threading

from testbed.report.terminal.streams import Streams


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_streams_stay_apart_and_each_line_says_whose_it_is() -> None:
    output, error = io.StringIO(), io.StringIO()
    streams = Streams(output=output, error=error, environment={})
    streams.write(0, "hello", False)
    streams.write(11, "oh", True)
    assert (output.getvalue(), error.getvalue()) == ("[w0] hello\n", "[w11] oh\n")


def test_a_terminal_that_is_gone_stops_nobody() -> None:
    """The threads that call it copy what workers print into their logs, too."""

    def above(_: str) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    output = io.StringIO()
    streams = Streams(output=output, error=Terminal(), environment={}, above=above)
    streams.write(0, "lost", True)
    streams.write(0, "kept", False)
    assert output.getvalue() == "[w0] kept\n"


def test_a_terminal_has_colours_unless_configured_otherwise() -> None:
    colored, plain = Terminal(), Terminal()
    Streams(output=colored, error=colored, environment={}).write(1, "a", True)
    Streams(output=plain, error=plain, environment={"NO_COLOR": "1"}).write(1, "a", True)
    assert colored.getvalue() == "\x1b[33m[w1]\x1b[0m\x1b[31m!\x1b[0m a\n"
    assert plain.getvalue() == "[w1] a\n"


def test_a_live_display_is_offered_what_goes_to_a_terminal_and_nothing_else() -> None:
    taken: list[str] = []
    file, terminal = io.StringIO(), Terminal()
    streams = Streams(
        output=file, error=terminal, environment={"NO_COLOR": "1"}, above=lambda text: not taken.append(text)
    )
    streams.write(0, "to the file", False)
    streams.write(0, "to the terminal", True)
    assert (file.getvalue(), terminal.getvalue(), taken) == ("[w0] to the file\n", "", ["[w0] to the terminal\n"])


def test_lines_of_many_threads_are_whole() -> None:
    output = io.StringIO()
    streams = Streams(output=output, error=output, environment={})
    threads = [
        threading.Thread(target=lambda rank=rank: [streams.write(rank, "x" * 50, rank % 2 == 1) for _ in range(200)])
        for rank in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(output.getvalue().splitlines()) == {f"[w{rank}] {'x' * 50}" for rank in range(4)}


def test_a_reader_that_has_gone_stops_nothing() -> None:
    error = io.StringIO()
    streams = Streams(output=Closed(), error=error, environment={})
    streams.write(0, "a", False)
    streams.write(0, "b", False)
    streams.write(0, "c", True)
    assert error.getvalue() == "[w0] c\n"

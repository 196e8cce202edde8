"""What counts as a command's program: the files that its arguments name, by what is in them."""

import os
from pathlib import Path

import pytest

from testbed.system.command_files import files_digest

ARGV = ("python", "ddp.py", "--config=train.yaml", "--steps", "5")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "ddp.py").write_text("print(1)\n")
    (tmp_path / "train.yaml").write_text("batch: 4\n")
    (tmp_path / "model.py").write_text("")
    (tmp_path / "data").mkdir()
    return tmp_path


def test_the_same_files_have_the_same_digest_wherever_they_lie(
    here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("ddp.py", "train.yaml"):
        (elsewhere / name).write_bytes((here / name).read_bytes())
    assert files_digest(ARGV, here) == files_digest(ARGV, elsewhere) == files_digest(ARGV, here)


@pytest.mark.parametrize("name", ["ddp.py", "train.yaml"])
def test_a_file_that_was_edited_or_is_gone_is_another_program(here: Path, name: str) -> None:
    before = files_digest(ARGV, here)
    (here / name).write_text("something longer than it was\n")
    edited = files_digest(ARGV, here)
    (here / name).unlink()
    assert len({before, edited, files_digest(ARGV, here)}) == 3


def test_which_file_has_which_content_matters(here: Path) -> None:
    (here / "a").write_text("one")
    (here / "b").write_text("two")
    before = files_digest(("a", "b"), here)
    (here / "a").write_text("two")
    (here / "b").write_text("one")
    assert files_digest(("a", "b"), here) != before


def test_what_no_argument_names_does_not_count(here: Path) -> None:
    before = files_digest(ARGV, here)
    (here / "model.py").write_text("layers = 3\n")
    (here / "data" / "ddp.py").write_text("another")
    assert files_digest(ARGV, here) == before


@pytest.mark.parametrize(
    "argument", ["python3 ddp.py --steps 5 | tee /dev/stderr", "exec ./ddp.py&&true", "(cd . && python 'ddp.py')"]
)
def test_words_of_a_line_for_a_shell_are_names_too(here: Path, argument: str) -> None:
    argv = ("sh", "-c", argument)
    before = files_digest(argv, here)
    (here / "ddp.py").write_text("something longer than it was\n")
    assert files_digest(argv, here) != before


def test_a_link_is_the_file_that_it_leads_to_and_a_path_may_be_absolute(here: Path) -> None:
    (here / "link.py").symlink_to(here / "ddp.py")
    for argv in (("link.py",), (str(here / "ddp.py"),)):
        (here / "ddp.py").write_text("one\n")
        before = files_digest(argv, here)
        (here / "ddp.py").write_text("another one\n")
        assert files_digest(argv, here) != before


def test_what_is_no_regular_file_is_left_alone(here: Path) -> None:
    os.mkfifo(here / "pipe")  # reading it would wait for ever
    nothing = files_digest((), here)
    for argument in ("data", "pipe", "/dev/zero", "no-such-file", "x" * 100_000, "bytes\udcff", ""):
        assert files_digest((argument,), here) == nothing

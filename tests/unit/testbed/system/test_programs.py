import os
from pathlib import Path

import pytest

from testbed.system.programs import problem_of


def made(path: Path, text: str = "", *, mode: int = 0o755) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    path.chmod(mode)
    return str(path)


def test_what_can_be_started_has_no_problem(tmp_path: Path) -> None:
    assert problem_of("sh") is None
    assert problem_of("/bin/sh") is None
    assert problem_of(made(tmp_path / "a", "#!/bin/sh\n")) is None
    assert problem_of(made(tmp_path / "b", "#! /usr/bin/env sh\n")) is None
    assert problem_of(made(tmp_path / "c", "#!/usr/bin/env -S A=1 sh\n")) is None
    assert problem_of(made(tmp_path / "d", "echo a shell takes that\n")) is None
    assert problem_of(made(tmp_path / "e", "#!/bin/sh")) is None


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("#!/no/such/python\n", ["interpreter", "/no/such/python", "does not exist"]),
        ("#!/usr/bin/env pyhton3\n", ["pyhton3", "not on PATH"]),
        ("#!/bin/sh\r\n", ["carriage return"]),
        ("#!/etc\n", ["/etc", "may not be executed"]),
        ("#!/etc/passwd\n", ["/etc/passwd", "may not be executed"]),
        ("#!  \n", ["names no interpreter"]),
    ],
)
def test_a_bad_first_line_is_named(tmp_path: Path, first: str, words: list[str]) -> None:
    problem = problem_of(made(tmp_path / "script", f"{first}echo\n"))
    assert problem is not None
    assert all(word in problem for word in [*words, "script"])


def test_what_is_there_and_cannot_be_executed_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = made(tmp_path / "plain", "#!/bin/sh\n", mode=0o644)
    (tmp_path / "broken").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    expected = {
        plain: "chmod +x",
        "./plain": "chmod +x",
        str(tmp_path): "is a directory",
        "broken": "there is no program 'broken'",
        "./broken": "is a link to nowhere, which does not exist",
        "plain": "write ./plain",
        "nobody": "there is no program 'nobody'",
    }
    assert {program: expected[program] in (problem_of(program) or "") for program in expected} == dict.fromkeys(
        expected, True
    )


def test_the_path_is_that_of_the_programs_environment(tmp_path: Path) -> None:
    made(tmp_path / "bin" / "tool", "#!/bin/sh\n")
    made(tmp_path / "other" / "tool", "#!/bin/sh\n", mode=0o600)
    assert problem_of("tool", {"PATH": str(tmp_path / "bin")}) is None
    assert "chmod +x" in (problem_of("tool", {"PATH": str(tmp_path / "other")}) or "")
    assert "there is no program" in (problem_of("tool", {**os.environ}) or "")
    assert problem_of("sh", {}) is None, "as execvp, which has a path of its own then"

import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from switch_agg.errors import UnsupportedError
from switch_agg.native.build import build


def test_what_is_built_is_kept_until_its_source_changes(tmp_path: Path) -> None:
    source = tmp_path / "answer.c"
    source.write_text("int answer(void) { return 42; }\n")
    first = build(source, "library")
    assert ctypes.CDLL(str(first)).answer() == 42
    stamp = first.stat().st_mtime_ns
    assert build(source, "library") == first
    assert first.stat().st_mtime_ns == stamp
    source.write_text("int main(void) { return 7; }\n")
    program = build(source, "program")
    assert program != first
    assert subprocess.run([str(program)], check=False).returncode == 7
    assert {path.name for path in (tmp_path / "build").glob(".*")} == {".answer.lock"}


def test_of_many_that_need_it_at_once_one_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty-two workers that all compiled kept two cores busy for longer than an operation may take."""
    called = tmp_path / "called"
    real = shutil.which("cc") or shutil.which("gcc")
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\necho >> {called}\nsleep 0.2\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    source = tmp_path / "answer.c"
    source.write_text("int answer(void) { return 42; }\n")
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: build(source, "library"), range(8)))) == 1
    assert called.read_text() == "\n"


def test_a_changed_header_is_a_changed_source(tmp_path: Path) -> None:
    (tmp_path / "answer.h").write_text("enum { ANSWER = 1 };\n")
    source = tmp_path / "answer.c"
    source.write_text('#include "answer.h"\nint main(void) { return ANSWER; }\n')
    built = []
    for answer in (1, 2):
        (tmp_path / "answer.h").write_text(f"enum {{ ANSWER = {answer} }};\n")
        built.append(build(source, "program"))
        assert subprocess.run([str(built[-1])], check=False).returncode == answer
    assert built[0] != built[1]


def test_what_the_compiler_says_is_said(tmp_path: Path) -> None:
    source = tmp_path / "wrong.c"
    source.write_text("int main(void) { int unused; return 0 }\n")
    with pytest.raises(UnsupportedError, match=r"(?s)cannot build wrong\.c.*apt-get install.*expected"):
        build(source, "program")


def test_without_a_compiler_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "answer.c"
    source.write_text("int answer;\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="no cc or gcc to build"):
        build(source, "library")
    with pytest.raises(UnsupportedError, match="no clang to build"):
        build(source, "bpf")

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


ANSWER = "int answer(void) { return 42; }\n"


def test_where_packages_are_installed_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "lib" / "site-packages" / "package" / "answer.c"
    source.parent.mkdir(parents=True)
    source.write_text(ANSWER)
    built = build(source, "library")
    assert built.parent == tmp_path / "cache" / "ina-testbed" / "native"
    assert ctypes.CDLL(str(built)).answer() == 42
    assert [path.name for path in source.parent.iterdir()] == ["answer.c"]
    stamp = built.stat().st_mtime_ns
    assert build(source, "library").stat().st_mtime_ns == stamp


def test_what_was_installed_with_its_package_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container's image, where there is no compiler."""
    source = tmp_path / "answer.c"
    source.write_text(ANSWER)
    built = build(source, "library")
    installed = tmp_path / "site-packages"
    shutil.copytree(built.parent, installed / "build")
    shutil.copy(source, installed)
    monkeypatch.setenv("PATH", "")
    assert build(installed / "answer.c", "library") == installed / "build" / built.name


def test_what_others_may_change_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "site-packages" / "answer.c"
    source.parent.mkdir()
    source.write_text(ANSWER)
    built = build(source, "library")
    built.chmod(0o777)
    with pytest.raises(UnsupportedError, match=r"may be changed by other users.*XDG_CACHE_HOME"):
        build(source, "library")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "site-packages" / "answer.c"
    source.parent.mkdir()
    source.write_text(ANSWER)
    with pytest.raises(UnsupportedError, match=r"cannot write .*; set XDG_CACHE_HOME"):
        build(source, "library")

"""Why a program cannot be executed, in words: execve(2) says no more than `No such file or directory` of a script whose
interpreter is missing, and `Permission denied` of a directory. Imported in containers, too: standard library only."""

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

_SHEBANG_BYTES = 256
"""Linux reads no more of a script's first line (BINPRM_BUF_SIZE)."""


def problem_of(program: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Why `execvp` would not start the program from here, with its fix; None: it would.

    It is looked for on the environment's PATH (this process' own where none is given) unless there is a slash in it.
    """
    path = None if environment is None else environment.get("PATH", os.defpath)
    found = shutil.which(program, path=path)
    if found is None:
        return _not_there(program, path)
    return _interpreter_problem(Path(found), path)


def _not_there(program: str, path: str | None) -> str:
    folders = [] if "/" in program else (path or os.environ.get("PATH", os.defpath)).split(os.pathsep)
    for candidate in [Path(folder or ".", program) for folder in folders] or [Path(program)]:
        if candidate.is_dir():
            if not folders:
                return f"{program} is a directory: name a program in it"
        elif candidate.exists():
            return f"{candidate} may not be executed: chmod +x {candidate}, or name its interpreter before it"
        elif candidate.is_symlink():
            return f"{candidate} is a link to {candidate.readlink()}, which does not exist"
    here = Path(program)
    if folders and here.is_dir():
        return f"{program} is a directory: name a program in it"
    if folders and here.exists():
        return (
            f"there is no program {program!r} on PATH, but a file here: write ./{program}, or its interpreter before it"
        )
    return f"there is no program {program!r}: install it, or give its path"


def _interpreter_problem(script: Path, path: str | None) -> str | None:
    try:
        with script.open("rb") as file:
            first = file.read(_SHEBANG_BYTES).split(b"\n", 1)[0]
    except OSError:  # executable and unreadable is a program all the same
        return None
    if not first.startswith(b"#!"):
        return None
    if first.endswith(b"\r"):
        return (
            f"the first line of {script} ends with a carriage return, which belongs to its interpreter's name: dos2unix"
        )
    words = first[2:].decode(errors="replace").split()
    if not words:
        return f"the first line of {script}, #!, names no interpreter"
    interpreter = Path(words[0])
    if not interpreter.exists():
        return f"the interpreter of {script}, {interpreter} in its first line, does not exist"
    if interpreter.is_dir() or not interpreter.stat().st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH):
        return f"the interpreter of {script}, {interpreter} in its first line, may not be executed"
    by_name = words[1:2] if interpreter.name == "env" else []
    if (
        by_name
        and not by_name[0].startswith("-")
        and "=" not in by_name[0]
        and shutil.which(by_name[0], path=path) is None
    ):
        return f"the interpreter of {script}, {by_name[0]} in its first line, is not on PATH"
    return None

"""Builds C sources, once for each state of the source: programs, shared libraries, and objects for the kernel's BPF.

`python -m switch_agg.native.build` builds this folder's ahead of the first run; `tools/setup.sh` calls it.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from switch_agg.errors import UnsupportedError
from switch_agg.native.cache import cache_directory
from switch_agg.native.layout import Layout, assertions

Form = Literal["program", "library", "bpf"]
FOLDER: Final = Path(__file__).resolve().parent
_FLAGS: Final[dict[Form, tuple[str, ...]]] = {
    "program": ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"),
    "library": ("-O3", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"),
    "bpf": ("-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3", "-c"),
}
_LIBRARIES: Final[dict[Form, tuple[str, ...]]] = {"program": ("-lm",), "library": ("-lm",), "bpf": ()}
_SUFFIXES: Final[dict[Form, str]] = {"program": "", "library": ".so", "bpf": ".o"}
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_MODE: Final = 0o755
"""Whatever the umask is."""
_FIXES: Final[dict[Form, str]] = {
    "program": "apt-get install --no-install-recommends gcc libc6-dev linux-libc-dev",
    "library": "apt-get install --no-install-recommends gcc libc6-dev linux-libc-dev",
    "bpf": "apt-get install --no-install-recommends clang libbpf-dev linux-libc-dev",
}


def build(
    source: Path,
    form: Form,
    defines: tuple[str, ...] = (),
    *,
    layouts: Sequence[Layout] = (),
    further_flags: tuple[str, ...] = (),
) -> Path:
    """What the compiler makes of the source, made if there is none of this source yet: in the folder `build` beside it,
    or, where packages are installed or nothing can be written, in the user's cache.

    `defines` are macros, as NAME=VALUE, `layouts` those of structures that Python shares, `further_flags` what the
    compiler gets beside what it always gets. Raises UnsupportedError when it has to be built and there is no compiler,
    or the compiler refuses: a layout that is not the source's, say. So where what lies in the cache may be somebody
    else's.
    """
    flags = (*_flags(form), *further_flags, *(f"-D{define}" for define in defines))
    libraries = _LIBRARIES[form]
    sources = [source, *sorted(source.parent.glob("*.h"))]
    asserted = assertions(layouts)
    contents = b"".join(path.read_bytes() for path in sources) + " ".join((*flags, *libraries, asserted)).encode()
    digest = hashlib.sha256(contents).hexdigest()[:12]
    built = source.parent / "build" / f"{source.stem}-{digest}{_SUFFIXES[form]}"
    if not built.exists() and not _can_be_built_beside(source):
        built = cache_directory() / "native" / built.name
        _refuse_foreign(built)
    if not built.exists():
        try:
            built.parent.mkdir(parents=True, exist_ok=True)
            with built.with_name(f".{source.stem}.lock").open("w") as lock:
                # Of many workers that need it one compiles: if all did, they would keep each other waiting for cores.
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not built.exists():
                    _compile(source, built, form, flags, asserted)
        except OSError as error:
            raise UnsupportedError(f"cannot write {built}: {error}; set XDG_CACHE_HOME to a writable folder") from error
    return built


def _can_be_built_beside(source: Path) -> bool:
    """In a checkout: what an installer has laid down is the installer's to change."""
    return not _INSTALLED & set(source.parts) and os.access(source.parent, os.W_OK)


def _refuse_foreign(built: Path) -> None:
    """A cache may be in a folder of another user's (sudo may keep HOME), who must not say what this one runs."""
    try:
        status = built.stat()
    except OSError:  # it is to be made, or that fails with a reason of its own
        return
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsupportedError(
            f"{built} may be changed by other users than {os.geteuid()}: remove it, or set XDG_CACHE_HOME to a folder "
            "of your own"
        )


def _flags(form: Form) -> tuple[str, ...]:
    if form != "bpf":
        return _FLAGS[form]
    # Debian keeps asm/ in a folder of the machine's architecture, where clang does not look for another target.
    return (*_FLAGS[form], f"-I/usr/include/{os.uname().machine}-linux-gnu")


def _compile(source: Path, built: Path, form: Form, flags: tuple[str, ...], asserted: str) -> None:
    names = ("clang",) if form == "bpf" else ("cc", "gcc")
    compiler = next((found for found in map(shutil.which, names) if found), None)
    if compiler is None:
        raise UnsupportedError(f"no {' or '.join(names)} to build {source.name} with: {_FIXES[form]}")
    partial = built.with_name(f".{built.name}")  # until it is whole: others look for it without the lock
    whole = built.with_name(f".{built.name}.c")
    try:
        whole.write_text(f'#include "{source}"\n{asserted}')
        argv = [compiler, *flags, "-o", str(partial), str(whole), *_LIBRARIES[form]]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnsupportedError(f"{compiler} cannot build {source.name} ({_FIXES[form]}):\n{done.stderr.strip()}")
        partial.chmod(_MODE)
        partial.replace(built)
    finally:
        partial.unlink(missing_ok=True)
        whole.unlink(missing_ok=True)


if __name__ == "__main__":
    from switch_agg.native.worker import library  # which knows the layouts

    library()

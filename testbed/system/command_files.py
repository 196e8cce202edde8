"""Which files a command line names, and what is in them: results of one program are not taken for another's.

What a program imports or reads besides is not known, and neither is one that is looked for on PATH.
"""

import hashlib
import re
import stat
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

_BETWEEN_WORDS: Final = re.compile(r"[\s=;|&<>()'\"`]+")
"""In an argument that is more than a file's name: `--config=train.yaml`, or a line for a shell."""


def files_digest(argv: Sequence[str], directory: Path) -> str:
    """SHA-256 of the names and contents of the regular files that arguments, or words in them, name, as they are now
    and seen from that directory. A link is the file that it leads to."""
    digest = hashlib.sha256()
    for name in sorted({word for argument in argv for word in (argument, *_BETWEEN_WORDS.split(argument))}):
        if (content := _content(directory / name)) is not None:
            digest.update(f"{name}\0{content}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _content(path: Path) -> str | None:
    """A digest of what is in a file; None where there is no regular file of that name."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # what is too long for a name is none, either
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return _content_sha256(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


@lru_cache(maxsize=1024)
def _content_sha256(path: Path, _version: tuple[int, ...]) -> str:
    """Read once for each state of the file: a sweep asks for every run."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"

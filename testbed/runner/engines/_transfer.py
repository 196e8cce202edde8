"""A record from one machine to another: what is in it, with hashes; and received, checked against them.

Nothing is trusted but the hashes' own consistency: a path that would leave the directory is refused.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

CHUNK_BYTES: Final = 4 * 2**20


class TransferError(Exception):
    """What has arrived is not what was sent."""


class File(NamedTuple):
    """A file of a record."""

    path: str
    """Relative to the record, with slashes."""
    size_bytes: int
    sha256: str


def files_of(directory: Path) -> list[File]:
    """Every file below a directory. Raises TransferError for what is neither a file nor a directory."""
    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            raise TransferError(f"{path} is no plain file")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found.append(File(path.relative_to(directory).as_posix(), path.stat().st_size, digest))
    return found


def receive(files: Sequence[File], read: Callable[[str, int], bytes], into: Path) -> None:
    """Make the directory `into` of what `read(path, offset)` gives, at most CHUNK_BYTES at a time and nothing at the
    end. Raises TransferError where that is not what `files` says."""
    into.mkdir(parents=True)
    for file in files:
        relative = PurePosixPath(file.path)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise TransferError(f"{file.path!r} is no path inside a record")
        path = into / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, size_bytes = hashlib.sha256(), 0
        with path.open("xb") as made:
            while size_bytes < file.size_bytes and (data := read(file.path, size_bytes)):
                made.write(data)
                digest.update(data)
                size_bytes += len(data)
        if (size_bytes, digest.hexdigest()) != (file.size_bytes, file.sha256):
            raise TransferError(f"{file.path}: {size_bytes} bytes arrived that are not the {file.size_bytes} sent")

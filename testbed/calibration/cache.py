"""What calibration measured before, for the same kernel, processor, class of link and state of this code.

One JSON file in the user's cache (XDG Base Directory Specification). What it holds is measurements that held; each says
when it was made, and a record says which of its numbers came from here.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from switch_agg.native.cache import cache_directory
from testbed.errors import MissingRequirementError
from testbed.system import environment


class Mode(StrEnum):
    """What a run measures before it begins. Settings are read back, and delays measured, on every link in each."""

    FULL = "full"
    """The rate of every direction; nothing from the cache."""
    CLASS = "class"
    """The rate of one direction of each class, now; queue and loss of each class from the cache where it has them."""
    CACHED = "cached"
    """The rate from the cache too."""


MAX_AGE: Final = timedelta(days=7)
"""An older measurement is made again: updates that no version number shows (microcode, the hypervisor) happen."""
_PACKAGE: Final = Path(__file__).resolve().parents[1]
_log = logging.getLogger(__name__)


def machine_digest() -> str:
    """Of the kernel, the processor and the code that measures and makes links: another digest, another measurement."""
    digest = hashlib.sha256()
    for fact in environment.machine():
        digest.update(f"{fact}\n".encode())
    for path in sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def sources() -> list[Path]:
    """The files of the code that measures and makes links, in one order."""
    folders = ("calibration", "measure", "links", "deployment", "experiment/delay_backends", "system/native")
    found = [path for folder in folders for path in (_PACKAGE / folder).glob("*.[pch]*")]
    found += [_PACKAGE / name for name in ("experiment/link.py", "plan/nodes.py", "system/netlink.py")]
    return sorted(path for path in found if path.suffix in {".py", ".c", ".h"})


class CalibrationCache:
    """A mapping from (class of link, quantity) to the measurement and its date, kept in a file."""

    def __init__(self, path: Path, *, machine: str, now: datetime | None = None) -> None:
        """`now` is the moment that ages count from; the current one by default."""
        self._path = path
        self._machine = machine
        self._now = now or datetime.now(UTC)
        self._entries = self._load()

    @classmethod
    def of_user(cls) -> "CalibrationCache":
        """The calling user's, for this machine."""
        return cls(cache_directory() / "calibration.json", machine=machine_digest())

    def get(self, link_class: str, quantity: str) -> Mapping[str, Any] | None:
        """The entry, with its `measured_at` (ISO 8601); None if there is none that is young enough."""
        entry = self._entries.get(self._key(link_class, quantity))
        if entry is None or self._now - datetime.fromisoformat(entry["measured_at"]) > MAX_AGE:
            return None
        return entry

    def put(self, link_class: str, quantity: str, entry: Mapping[str, Any]) -> None:
        """Keep plain data that says `measured_at`. Raises MissingRequirementError when it cannot be written."""
        # Another run may have written meanwhile; what was made for another state of the machine or the code is dropped.
        kept = {key: value for key, value in self._load().items() if key.startswith(f"{self._machine} ")}
        self._entries = {**kept, self._key(link_class, quantity): dict(entry)}
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(self._entries, indent=1) + "\n", encoding="utf-8")
            partial.replace(self._path)
        except OSError as failure:
            raise MissingRequirementError(
                f"cannot write {self._path}: {failure.strerror}; set XDG_CACHE_HOME to a writable directory, or "
                "measure everything with --calibrate full"
            ) from failure

    def _key(self, link_class: str, quantity: str) -> str:
        return f"{self._machine} {quantity} {link_class}"

    def _load(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if all(datetime.fromisoformat(entry["measured_at"]) for entry in found.values()):
                return dict(found)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            _log.warning("%s cannot be read (%s): everything is measured again", self._path, error)
        return {}

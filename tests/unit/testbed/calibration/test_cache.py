"""What was measured comes back for the same machine and class, and only while it is young."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from testbed.calibration.cache import MAX_AGE, CalibrationCache, machine_digest, sources
from testbed.errors import MissingRequirementError

ENTRY = {"measured_at": datetime(2026, 1, 1, tzinfo=UTC).isoformat(), "direction": "w0 -> s0", "value": {"low": 0.1}}


def at(path: Path, *, machine: str = "m", days: float = 1.0) -> CalibrationCache:
    return CalibrationCache(path, machine=machine, now=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=days))


def test_an_entry_is_found_again_by_machine_class_and_quantity(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "calibration.json"
    at(path).put("w -> s", "loss", ENTRY)
    assert at(path).get("w -> s", "loss") == ENTRY
    assert at(path).get("w -> s", "queue") is None
    assert at(path).get("s -> w", "loss") is None
    assert at(path, machine="other").get("w -> s", "loss") is None


def test_an_old_entry_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    at(path).put("w -> s", "loss", ENTRY)
    assert at(path, days=MAX_AGE.days + 1).get("w -> s", "loss") is None


def test_entries_of_other_writers_are_kept_and_those_of_another_machine_dropped(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    at(path, machine="old").put("a", "loss", ENTRY)
    ours, theirs = at(path), at(path)
    ours.put("b", "loss", ENTRY)
    theirs.put("c", "loss", ENTRY)
    assert {key.split()[0] for key in json.loads(path.read_text())} == {"m"}
    assert at(path).get("b", "loss") == at(path).get("c", "loss") == ENTRY


@pytest.mark.parametrize("text", ["{", "[]", '{"m loss a": 3}', '{"m loss a": {"measured_at": "yesterday"}}'])
def test_a_file_that_cannot_be_read_means_measuring_again_and_is_said(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    assert at(path).get("a", "loss") is None
    assert "everything is measured again" in caplog.text


def test_a_directory_that_cannot_be_written_names_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingRequirementError, match="XDG_CACHE_HOME"):
        at(tmp_path / "file" / "calibration.json").put("a", "loss", ENTRY)


def test_the_machine_is_the_same_from_one_moment_to_the_next() -> None:
    assert machine_digest() == machine_digest()


def test_the_machine_is_another_when_fewer_of_its_cores_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_digest()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: frozenset(range(1000)))
    assert machine_digest() != before


def test_another_state_of_any_code_that_makes_links_is_another_machine() -> None:
    names = {"htb.py", "deployment.py", "nodes.py", "netlink.py", "link.py", "netem.py", "nfqueue.py", "relay_tap.c"}
    assert names <= {path.name for path in sources()}

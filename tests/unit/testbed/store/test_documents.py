from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.errors import SpecError
from testbed.store.documents import origin, origin_here, recorded_schema_version, resolved_spec
from testbed.system import environment

RECORD = Path("tests/records/version_3")
READERS: dict[str, Callable[[Path], object]] = {
    "spec.yaml": resolved_spec,
    "environment.json": origin,
    "summary.json": recorded_schema_version,
}


def test_a_record_says_what_was_requested_and_where_it_ran() -> None:
    assert resolved_spec(RECORD)["link"]["rate"] == "100mbit"
    assert origin(RECORD).machine == "AMD EPYC, 2 cores, Linux 6.18.0"
    assert len(origin(RECORD).commit) == 40
    assert origin(RECORD).code is None, "it was made before records said so"
    assert recorded_schema_version(RECORD) == 3
    assert recorded_schema_version(RECORD.with_name("version_2")) == 2


def test_settings_are_those_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a notebook, say, that somebody changes sysctls under."""
    before = origin_here()
    monkeypatch.setattr(environment, "num_usable_cores", lambda: 77)
    assert before.unlike(origin_here()) == (f"usable cores {before.settings['usable cores']} instead of 77",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spec.yaml", "a: ["),
        ("spec.yaml", "- 1"),
        ("spec.yaml", "a: !!python/object:os.system {}"),
        ("environment.json", "[]"),
        ("environment.json", '{"commit": "", "cpu": "", "num_cores": 1, "kernel": "", "python": "", "packages": 1}'),
        ("summary.json", "[]"),
        ("summary.json", "{}"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=name):
        READERS[name](tmp_path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for read in READERS.values():
        with pytest.raises(SpecError, match=str(tmp_path)):
            read(tmp_path)

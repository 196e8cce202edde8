from pathlib import Path

import pytest

from testbed.errors import SpecError
from testbed.store.documents import origin, resolved_spec

RECORD = Path("tests/records/version_3")


def test_a_record_says_what_was_requested_and_where_it_ran() -> None:
    assert resolved_spec(RECORD)["link"]["rate"] == "100mbit"
    assert origin(RECORD).machine == "AMD EPYC, 2 cores, Linux 6.18.0"
    assert len(origin(RECORD).commit) == 40


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spec.yaml", "a: ["),
        ("spec.yaml", "- 1"),
        ("spec.yaml", "a: !!python/object:os.system {}"),
        ("environment.json", "[]"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=name):
        (resolved_spec if name == "spec.yaml" else origin)(tmp_path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for read in (resolved_spec, origin):
        with pytest.raises(SpecError, match=str(tmp_path)):
            read(tmp_path)

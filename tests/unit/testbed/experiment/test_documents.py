"""YAML with slips in it."""

from pathlib import Path

import pytest

from testbed.experiment.documents import load_document, read_document


def test_a_key_that_stands_twice_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"^is not YAML: line 4, column 3: 'rate' stands twice$"):
        load_document("link:\n  rate: 1gbit\n  delay: 1ms\n  rate: 2gbit\n")
    with pytest.raises(ValueError, match="'a' stands twice"):
        load_document("{a: 1, b: {c: 2}, a: 3}")


def test_what_is_merged_in_may_be_said_anew() -> None:
    text = "base: &base {rate: 1gbit, delay: 1ms}\nother: {<<: *base, rate: 2gbit}\nagain: {rate: 1, 1: rate}\n"
    assert load_document(text)["other"] == {"rate": "2gbit", "delay": "1ms"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "line 1, column 6: expected ',' or ']', but got '<stream end>'"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
        ("[" * 2000, "is not YAML: "),
        ("a: 2020-99-99", "month must be in 1..12"),
    ],
)
def test_what_is_no_yaml_is_one_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^is not YAML: ") as caught:
        load_document(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^cannot read .*: Is a directory$"):
        read_document(tmp_path)
    (tmp_path / "latin").write_bytes(b"name: \xe4")
    with pytest.raises(ValueError, match=r"it is not UTF-8 text$"):
        read_document(tmp_path / "latin")
    (tmp_path / "good").write_text("a: 1")
    assert read_document(tmp_path / "good") == {"a": 1}

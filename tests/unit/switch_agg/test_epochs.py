from pathlib import Path

import pytest

from switch_agg.epochs import RESERVED, Epochs
from switch_agg.errors import UnsupportedError


def test_numbers_count_up_and_around() -> None:
    epochs = Epochs(first=2**32 - 2)
    assert [epochs.next() for _ in range(4)] == [2**32 - 2, 2**32 - 1, 0, 1]


def test_they_begin_anywhere() -> None:
    firsts = {Epochs().next() for _ in range(20)}
    assert len(firsts) > 15
    assert max(firsts) > 2**24


def test_no_later_process_gives_a_number_out_again(tmp_path: Path) -> None:
    memory, seen = tmp_path / "agg.sock.epoch", set[int]()
    for count in (1, 3, RESERVED, RESERVED + 1, 2 * RESERVED + 7, 1):
        epochs = Epochs(memory=memory)
        for _ in range(count):
            number = epochs.next()
            assert number not in seen
            seen.add(number)
    assert [each.name for each in tmp_path.iterdir()] == [memory.name]


def test_the_file_s_numbers_go_around_too(tmp_path: Path) -> None:
    memory = tmp_path / "epoch"
    memory.write_text(str(2**32 - 2))
    epochs = Epochs(memory=memory)
    found = [epochs.next() for _ in range(RESERVED + 2)]
    assert found == [(2**32 - 2 + offset) % 2**32 for offset in range(RESERVED + 2)]


@pytest.mark.parametrize("text", ["", "seven", "-1", str(2**32)])
def test_a_file_that_says_no_number_is_refused(tmp_path: Path, text: str) -> None:
    memory = tmp_path / "epoch"
    memory.write_text(text)
    with pytest.raises(UnsupportedError, match=r"epoch: not the number of an epoch; without the file"):
        Epochs(memory=memory).next()


def test_what_cannot_be_remembered_is_not_given_out(tmp_path: Path) -> None:
    epochs = Epochs(memory=tmp_path / "none" / "epoch")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="cannot be remembered there: No such file"):
            epochs.next()
    (tmp_path / "none").mkdir()
    assert 0 <= epochs.next() < 2**32

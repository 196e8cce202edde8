import pytest

from transports.bench.options import parse_sizes
from transports.errors import OptionError


def test_sizes_are_a_list_or_grow_up_to_the_largest() -> None:
    assert parse_sizes("4B:1KiB:4") == [4, 16, 64, 256, 1024]
    assert parse_sizes("4B:1000B:10") == [4, 40, 400]
    assert parse_sizes("64KiB,25MB") == [65536, 25_000_000]


@pytest.mark.parametrize("text", ["", "4", "4B:1KiB", "4B:1KiB:1", "1KiB:4B:2", "4B:1KiB:x", "0B:1KiB:2", "4GiB"])
def test_sizes_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--sizes"):
        parse_sizes(text)

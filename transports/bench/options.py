"""Options that `testbed bench allreduce` and `python -m transports.bench` have alike."""

import math
from typing import Final

from transports.errors import OptionError
from transports.units import format_size, parse_size_bytes

LARGEST_BYTES: Final = 2**31
SIZES_HELP: Final = "MIN:MAX:FACTOR or a comma-separated list"
FORMAT_HELP: Final = "table, or osu: a list for each stack as osu_allreduce prints it."


def parse_sizes(text: str) -> list[int]:
    """Bytes, from `MIN:MAX:FACTOR` (each FACTOR times the one before, up to MAX) or a list `4KiB,1MiB`. Raises
    OptionError."""
    try:
        if ":" not in text:
            sizes_bytes = [parse_size_bytes(part) for part in text.split(",")]
        else:
            least, most, factor = text.split(":")
            sizes_bytes = _grown(parse_size_bytes(least), parse_size_bytes(most), float(factor))
    except ValueError as error:
        raise OptionError(f"--sizes {text}: write MIN:MAX:FACTOR or SIZE,SIZE, as in 4B:64MiB:4 ({error})") from None
    if wrong := [each for each in sizes_bytes if not 1 <= each <= LARGEST_BYTES]:
        raise OptionError(f"--sizes {text}: {wrong[0]} bytes; sizes are 1B to {format_size(LARGEST_BYTES)}")
    return sizes_bytes


def _grown(least_bytes: int, most_bytes: int, factor: float) -> list[int]:
    if not (factor >= 1.1 and math.isfinite(factor) and 0 < least_bytes <= most_bytes):
        raise ValueError("MIN is at most MAX, and FACTOR at least 1.1")
    # The tolerance keeps MAX itself in where it is reached through roundings.
    num_steps = int(math.log(most_bytes / least_bytes) / math.log(factor) + 1e-9)
    return list(dict.fromkeys(min(most_bytes, round(least_bytes * factor**step)) for step in range(num_steps + 1)))

"""Sets of integers as ranges: what has arrived, what was acknowledged. Pure."""

from bisect import bisect_left, bisect_right


class Ranges:
    """A set of integers as sorted, disjoint, half-open ranges that do not touch."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: int, end: int) -> int:
        """Put start..end-1 in; returns how many of them are new."""
        if self.ends and start >= self.ends[-1]:  # as what comes in order does
            if start > self.ends[-1]:
                self.starts.append(start)
                self.ends.append(end)
            else:
                self.ends[-1] = end
            return end - start
        first, last = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first == last:
            self.starts.insert(first, start)
            self.ends.insert(first, end)
            return end - start
        known = sum(min(end, self.ends[index]) - max(start, self.starts[index]) for index in range(first, last))
        self.starts[first:last] = [min(start, self.starts[first])]
        self.ends[first:last] = [max(end, self.ends[last - 1])]
        return end - start - known

    def covers(self, start: int, end: int) -> bool:
        """Whether all of start..end-1 is in it."""
        index = bisect_right(self.starts, start) - 1
        return index >= 0 and end <= self.ends[index]

    @property
    def prefix(self) -> int:
        """How many of 0, 1, 2... are in it without a gap."""
        return self.ends[0] if self.starts and self.starts[0] == 0 else 0

    def keep_last(self, num_ranges: int) -> None:
        """Forget all but the largest."""
        if len(self.starts) > num_ranges:
            del self.starts[:-num_ranges], self.ends[:-num_ranges]

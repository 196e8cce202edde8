"""Spans of time that overlap, side by side. Pure."""


class Lanes:
    """Each span goes to the first lane that is free when it begins; spans come in the order of their beginnings."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []

    def take(self, begin_s: float, end_s: float) -> int:
        """The lane's number, from 0."""
        for lane, free_s in enumerate(self._ends_s):
            if free_s <= begin_s:
                self._ends_s[lane] = end_s
                return lane
        self._ends_s.append(end_s)
        return len(self._ends_s) - 1

    def __len__(self) -> int:
        return len(self._ends_s)

"""Which directions of which links a text means: the one way to name them in a spec and on the command line. Pure."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from testbed.errors import SpecError
from testbed.plan.paths import Hop


class Directed(Protocol):
    """One direction of a link."""

    @property
    def link(self) -> str:
        """`w1-s0`, for both directions."""

    @property
    def hop(self) -> Hop:
        """Sending and receiving node."""


DirectedT = TypeVar("DirectedT", bound=Directed)


def select(directions: Sequence[DirectedT], text: str) -> list[DirectedT]:
    """The directions that the text names, in their order.

    `w1-s0` (or `s0-w1`) is a link, both directions; `w1->s0` is one direction; both may be patterns of the shell
    (fnmatch): `w*-s*`, `s*->w3`, `*`. Raises SpecError, naming the links there are, when nothing matches.
    """
    pattern = "".join(text.split())
    one_way = "->" in pattern

    def matches(direction: DirectedT) -> bool:
        sender, receiver = direction.hop
        if one_way:
            return fnmatchcase(f"{sender}->{receiver}", pattern)
        return fnmatchcase(f"{sender}-{receiver}", pattern) or fnmatchcase(f"{receiver}-{sender}", pattern)

    found = [direction for direction in directions if matches(direction)]
    if not found:
        links = ", ".join(dict.fromkeys(direction.link for direction in directions))
        raise SpecError(f"{text!r} names no link; there are {links}; write `w1-s0`, `w1->s0` or a pattern `w*-s*`")
    return found

"""One way to name links, in specs and on the command line."""

from dataclasses import dataclass

import pytest

from testbed.errors import SpecError
from testbed.plan.selector import select


@dataclass(frozen=True)
class Way:
    link: str
    hop: tuple[str, str]


DIRECTIONS = [
    Way(f"{first}-{second}", hop)
    for first, second in (("w0", "s0"), ("w1", "s0"), ("w10", "s1"), ("s0", "s1"))
    for hop in ((first, second), (second, first))
]


@pytest.mark.parametrize(
    ("text", "hops"),
    [
        ("w1-s0", [("w1", "s0"), ("s0", "w1")]),
        ("s0-w1", [("w1", "s0"), ("s0", "w1")]),
        ("w1->s0", [("w1", "s0")]),
        (" s0 -> w1 ", [("s0", "w1")]),
        ("w*->s*", [("w0", "s0"), ("w1", "s0"), ("w10", "s1")]),
        ("s*->s1", [("s0", "s1")]),
        ("w[01]-s0", [("w0", "s0"), ("s0", "w0"), ("w1", "s0"), ("s0", "w1")]),
        ("s*-s*", [("s0", "s1"), ("s1", "s0")]),
        ("*", [direction.hop for direction in DIRECTIONS]),
    ],
)
def test_links_directions_and_patterns(text: str, hops: list[tuple[str, str]]) -> None:
    assert [direction.hop for direction in select(DIRECTIONS, text)] == hops


@pytest.mark.parametrize("text", ["w2-s0", "w1", "s1->w1", "w1<-s0", "", "w1-s0-s1"])
def test_what_names_no_link_is_an_error_that_names_the_links_there_are(text: str) -> None:
    with pytest.raises(SpecError, match="there are w0-s0, w1-s0, w10-s1, s0-s1; write"):
        select(DIRECTIONS, text)

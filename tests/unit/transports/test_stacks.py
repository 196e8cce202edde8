import pytest

from transports.baselines.gloo import Gloo
from transports.channels.tcp import Tcp
from transports.collectives.ring import Ring
from transports.errors import OptionError
from transports.stacks import Composed, parse_stack


def test_a_stack_is_a_collective_over_a_channel_or_a_whole_one() -> None:
    assert parse_stack("ring/tcp") == Composed(Ring(), Tcp())
    assert parse_stack("gloo") == Gloo()


@pytest.mark.parametrize("text", ["nccl", "", "ring", "ring/", "ring/pigeon", "star/tcp", "/tcp", "ring/tcp/x"])
def test_an_unknown_stack_is_refused_saying_what_is_allowed(text: str) -> None:
    with pytest.raises(OptionError, match="allowed:"):
        parse_stack(text)

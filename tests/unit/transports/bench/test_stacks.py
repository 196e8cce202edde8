import pytest

from transports.baselines.gloo import Gloo
from transports.baselines.openmpi import OpenMpi
from transports.bench.stacks import Composed, parse_stack
from transports.channels.tcp import Tcp
from transports.collectives.parameter_server import ParameterServer
from transports.collectives.ring import Ring
from transports.compression.base import COMPRESSORS
from transports.errors import OptionError


def test_a_stack_is_a_collective_over_a_channel_or_a_whole_one() -> None:
    assert parse_stack("ring/tcp") == Composed(Ring(), Tcp())
    assert parse_stack("gloo") == Gloo()
    assert parse_stack("openmpi:algorithm=ring") == OpenMpi(algorithm="ring")


@pytest.mark.parametrize("text", ["nccl", "", "ring", "ring/", "ring/pigeon", "star/tcp", "/tcp", "ring/tcp/x"])
def test_an_unknown_stack_is_refused_saying_what_is_allowed(text: str) -> None:
    with pytest.raises(OptionError, match="allowed:"):
        parse_stack(text)


def test_a_compression_stands_behind_the_channel() -> None:
    stack = parse_stack("ring/tcp/qsgd:bits=8")
    assert isinstance(stack, Composed)
    assert stack.compression == COMPRESSORS.parse({"kind": "qsgd", "bits": 8})


def test_what_begins_later_in_training_cannot_be_timed_by_itself() -> None:
    with pytest.raises(OptionError, match=r"begins after 5 iterations of training.*; leave start out"):
        parse_stack("ring/tcp/powersgd:start=5")
    for text in ("ring/tcp/onebit_adam", "ring/tcp/onebit_adam:start=1"):  # which it cannot be without
        with pytest.raises(OptionError, match=r"onebit_adam begins after . iterations of .*; time a training"):
            parse_stack(text)


def test_options_stand_behind_a_kind() -> None:
    server = ParameterServer(servers=3, pipelined=True)
    assert parse_stack("parameter_server:servers=3:pipelined=true/tcp") == Composed(server, Tcp())
    assert parse_stack("ring:segment_bytes=64KiB/tcp:congestion=reno") == Composed(
        Ring.model_validate({"segment_bytes": "64KiB"}), Tcp(congestion="reno")
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ring:segment_bytes/tcp", "not option=value"),
        ("ring:segments=3/tcp", "ring has no option segments; allowed: segment_bytes"),
        ("parameter_server:servers=none/tcp", "servers: .*integer"),
    ],
)
def test_an_option_that_cannot_be_is_named(text: str, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        parse_stack(text)


def test_an_option_there_is_none_of_names_those_there_are() -> None:
    with pytest.raises(OptionError, match=r"udp has no option speed; allowed: rate, window, packets, target, payload"):
        parse_stack("ring/udp:speed=1gbit")
    with pytest.raises(OptionError, match=r"memory has no option rate; allowed: none"):
        parse_stack("ring/memory:rate=1gbit")

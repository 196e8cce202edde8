import os
import socket

import pytest

from tests.ranks import Rank, join_group, run_ranks
from transports.channels.base import CHANNELS
from transports.channels.tcp import Tcp
from transports.errors import OptionError, UnsupportedError
from transports.native import REQUIRED_VARIABLE
from transports.torch_backend.environment import axis_value, own_address, parsed_axis, rack_numbers, require_known


def test_an_axis_value_is_a_name_or_a_mapping() -> None:
    assert axis_value({}, "TESTBED_CHANNEL", "tcp") == "tcp"
    assert axis_value({"TESTBED_CHANNEL": "udp"}, "TESTBED_CHANNEL", "tcp") == "udp"
    assert axis_value({"TESTBED_CHANNEL": '{"kind": "tcp"}'}, "TESTBED_CHANNEL", "tcp") == {"kind": "tcp"}


def test_broken_json_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(OptionError, match="TESTBED_CHANNEL"):
        axis_value({"TESTBED_CHANNEL": '{"kind": '}, "TESTBED_CHANNEL", "tcp")


def test_a_value_is_parsed_with_its_options() -> None:
    assert parsed_axis(CHANNELS, {}, "TESTBED_CHANNEL", "tcp") == Tcp()
    given = {"TESTBED_CHANNEL": '{"kind": "tcp", "streams": 4}'}
    assert parsed_axis(CHANNELS, given, "TESTBED_CHANNEL", "tcp") == Tcp(streams=4)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("tpc", "TESTBED_CHANNEL: 'tpc' is not a channel; allowed: grpc"),
        ('{"kind": "tcp", "stream": 4}', "TESTBED_CHANNEL: tcp has no option stream; allowed: streams, congestion"),
        ('{"kind": "tcp", "streams": 0}', "TESTBED_CHANNEL: streams: Input should be greater than or equal to 1"),
    ],
)
def test_what_is_no_value_is_an_error_that_names_the_variable(value: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parsed_axis(CHANNELS, {"TESTBED_CHANNEL": value}, "TESTBED_CHANNEL", "tcp")


def test_a_variable_that_nothing_reads_is_refused_if_it_is_nearly_one_of_ours() -> None:
    require_known({"TESTBED_CHANNEL": "tcp", "TESTBED_ADDRESSES": "", "TESTBED_OF_MINE": "1", "PATH": "/bin"})
    require_known({REQUIRED_VARIABLE: "1"})
    with pytest.raises(OptionError, match=f"{REQUIRED_VARIABLE} is meant"):
        require_known({REQUIRED_VARIABLE.removesuffix("D"): "1"})
    with pytest.raises(OptionError, match="TESTBED_COMPRESSON: nothing reads it; TESTBED_COMPRESSION is meant"):
        require_known({"TESTBED_COMPRESSON": "fp16"})


def test_the_address_may_be_said_outright_and_wins() -> None:
    environment = {"TESTBED_ADDRESS": "10.1.2.3", "TESTBED_INTERFACE": "lo", "MASTER_ADDR": "127.0.0.1"}
    assert own_address(environment) == "10.1.2.3"


def test_an_interface_gives_its_address() -> None:
    assert own_address({"TESTBED_INTERFACE": "lo", "MASTER_ADDR": "192.0.2.1"}) == "127.0.0.1"


def test_an_interface_without_address_is_named() -> None:
    with pytest.raises(UnsupportedError, match="no-such-eth9"):
        own_address({"TESTBED_INTERFACE": "no-such-eth9"})


def test_the_address_is_the_one_that_the_route_to_the_master_uses() -> None:
    assert own_address({"MASTER_ADDR": "127.0.0.1"}) == "127.0.0.1"
    assert own_address({"MASTER_ADDR": "localhost"}) == "127.0.0.1"


def test_an_unknown_master_is_an_error_that_says_what_to_set() -> None:
    with pytest.raises(UnsupportedError, match="TESTBED_ADDRESS"):
        own_address({"MASTER_ADDR": "no-such-host.invalid"})


def test_without_a_master_it_is_loopback() -> None:
    assert own_address({}) == socket.inet_ntoa(socket.INADDR_LOOPBACK.to_bytes(4, "big"))


def test_racks_are_a_number_for_each_rank() -> None:
    assert rack_numbers({}) == ()
    assert rack_numbers({"TESTBED_RACKS": "0,0,1"}) == (0, 0, 1)
    with pytest.raises(OptionError, match="TESTBED_RACKS: 'a,b'"):
        rack_numbers({"TESTBED_RACKS": "a,b"})


def _beside_gloo(rank: Rank) -> list[str]:
    """What further groups say, with racks for one rank of two, and for three."""
    import torch.distributed as dist

    join_group(rank, "gloo")
    said = []
    for racks in ("0", "0,0,1"):
        os.environ["TESTBED_RACKS"] = racks
        try:
            dist.new_group(backend="testbed")
        except OptionError as error:
            said.append(str(error))
    dist.destroy_process_group()
    return said


def test_racks_of_a_further_group_are_those_of_all_ranks() -> None:
    for outcome in run_ranks(_beside_gloo, 2):
        assert outcome.value == [f"TESTBED_RACKS: {count} numbers for 2 ranks: one for each" for count in (1, 3)]

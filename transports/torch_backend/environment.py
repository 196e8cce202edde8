"""What the torch backend reads from the environment when nobody configured it: see `torch_backend/process_group.py`."""

import json
import socket
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from pydantic import ValidationError

from transports.errors import OptionError, UnsupportedError
from transports.interfaces import address_of_interface
from transports.registry import OptionsT, Registry

_PREFIX: Final = "TESTBED_"
_VARIABLES: Final = tuple(
    _PREFIX + name
    for name in (
        "COLLECTIVE",
        "CHANNEL",
        "COMPRESSION",
        "RACKS",
        "ADDRESS",
        "ADDRESSES",
        "INTERFACE",
        "REDIRECT",
        "AGGREGATION_LOST",
        "NATIVE_REQUIRED",
        "RUN_ID",
    )
)
_LOOPBACK: Final = "127.0.0.1"


def axis_value(environment: Mapping[str, str], name: str, default: str) -> object:
    """A name, or a mapping written as JSON, for a registry to parse. Raises OptionError naming the
    variable."""
    text = environment.get(name, default)
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{name} is neither a name nor JSON: {error}") from None


def parsed_axis(axis: Registry[OptionsT], environment: Mapping[str, str], name: str, default: str) -> OptionsT:
    """The value of an axis that a variable asks for. Raises OptionError naming the variable, the option and what is
    allowed."""
    value = axis_value(environment, name, default)
    try:
        return axis.parse(value)
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] != "extra_forbidden":
            raise OptionError(f"{name}: {where}: {first['msg'].removeprefix('Value error, ')}") from None
        kind = value["kind"] if isinstance(value, dict) else str(value)
        allowed = ", ".join(field.alias or option for option, field in axis[kind].model_fields.items())
        raise OptionError(f"{name}: {kind} has no option {where}; allowed: {allowed or 'none'}") from None


def require_known(environment: Mapping[str, str]) -> None:
    """Raises OptionError for a variable whose name is all but one of ours: it would be ignored."""
    for name in environment:
        if not name.startswith(_PREFIX) or name in _VARIABLES:
            continue
        if close := get_close_matches(name, _VARIABLES, n=1, cutoff=0.85):
            raise OptionError(f"{name}: nothing reads it; {close[0]} is meant")


def rack_numbers(environment: Mapping[str, str]) -> tuple[int, ...]:
    """TESTBED_RACKS as a number for each rank; empty where it is not set. Raises OptionError."""
    text = environment.get("TESTBED_RACKS", "")
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise OptionError(f"TESTBED_RACKS: {text!r} is no list of numbers, one for each rank: 0,0,1,1") from None


def require_rack_each(racks: Sequence[int], num_ranks: int) -> None:
    """Raises OptionError unless there is a number for each rank, or none at all."""
    if racks and len(racks) != num_ranks:
        raise OptionError(f"TESTBED_RACKS: {len(racks)} numbers for {num_ranks} ranks: one for each")


def own_address(environment: Mapping[str, str]) -> str:
    """This host's IPv4 address to listen on: TESTBED_ADDRESS, that of TESTBED_INTERFACE, or that of the
    interface which routes to MASTER_ADDR. Raises UnsupportedError when there is none."""
    if address := environment.get("TESTBED_ADDRESS"):
        return address
    if interface := environment.get("TESTBED_INTERFACE"):
        return address_of_interface(interface)
    if master := environment.get("MASTER_ADDR"):
        return address_towards(master)
    return _LOOPBACK


def address_towards(host: str) -> str:
    """Our own address on the way to a host; connecting a datagram socket asks the routing table and sends
    nothing.

    Raises UnsupportedError when the host is unknown or there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError as error:
            raise UnsupportedError(
                f"no way to MASTER_ADDR {host!r} ({error.strerror}); set TESTBED_ADDRESS to this host's own address"
            ) from None
        return str(probe.getsockname()[0])

"""`switch-agg serve | configure | remove | reset | inject | status | top`."""

import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from errno import EADDRINUSE, EADDRNOTAVAIL
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.live import Live

from switch_agg import clock
from switch_agg.control.service import ControlClient, served
from switch_agg.core import Address
from switch_agg.dataplanes.base import DataPlane, Program, data_plane, data_planes
from switch_agg.epochs import Epochs
from switch_agg.errors import AggregationError, Interrupted, JobError, UnsupportedError, explained
from switch_agg.faults import Faults
from switch_agg.interruptions import Ending
from switch_agg.job import Job
from switch_agg.namespaces import in_network_of
from switch_agg.payload import PayloadName
from switch_agg.status import SWITCHML, Status, status_of
from switch_agg.view import render
from switch_agg.wire import MAX_JOBS, PORTS, size_code

if TYPE_CHECKING:
    from switch_agg.metrics import Scraped
    from switch_agg.switchml.plane import SwitchMLDataPlane

app = typer.Typer(
    help="An aggregator for in-network aggregation: it adds gradients that workers send, SwitchML-style.\n\n"
    "Start with: switch-agg serve --listen 10.0.0.9 --control /run/agg.sock, then configure a job from another "
    "terminal. Workers use switch_agg.client.Client.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Control = Annotated[Path, typer.Option("--control", help="The aggregator's control socket.")]
JobNumber = Annotated[int, typer.Argument(help="Of the job.", min=0, max=MAX_JOBS - 1)]
DEFAULT_CONTROL = Path("/run/switch-agg.sock")
EXIT_INTERRUPTED: Final = 130
_LOOK_S: Final = 0.2
_PROGRAM_ELEMENTS: Final = 256
_PROGRAM_PAYLOAD: Final = "int32"
_PROGRAM_SLOTS: Final = 512


@app.command()
def serve(
    listen: Annotated[str, typer.Option(help="ADDRESS or ADDRESS:PORT; ports 48864 (0xBEE0) to 48879.")],
    control: Control = DEFAULT_CONTROL,
    dataplane: Annotated[
        str, typer.Option(help=f"What adds, this process or the kernel: {', '.join(data_planes())}.")
    ] = "reference",
    metrics: Annotated[int | None, typer.Option(help="Port on 127.0.0.1 for Prometheus.")] = None,
    switch_pid: Annotated[int | None, typer.Option(help="ebpf: a process in the switch's network namespace.")] = None,
    interface: Annotated[
        str | None, typer.Option(help="ebpf: the switch's interface that leads to the address.")
    ] = None,
    elements: Annotated[
        int, typer.Option(help="ebpf: elements of a chunk, the same for all jobs.")
    ] = _PROGRAM_ELEMENTS,
    payload: Annotated[
        PayloadName, typer.Option(help="ebpf: what is in them, the same for all jobs.")
    ] = _PROGRAM_PAYLOAD,
    slots: Annotated[int, typer.Option(help="ebpf: slots of all jobs together.")] = _PROGRAM_SLOTS,
    link_mbps: Annotated[
        float | None,
        typer.Option(
            help="What each worker's link carries, in Mbit/s: `top` and metrics then know the bound.",
            min=0.001,
            max=1e9,
        ),
    ] = None,
    compatible: Annotated[
        bool, typer.Option(help="Serve the unmodified clients of p4app-switchML, and nobody else: docs/switchml.md.")
    ] = False,
    sessions: Annotated[
        str | None,
        typer.Option(
            help="compatible: ADDRESS:PORT of the session service, the clients' controller_ip and controller_port; the "
            "address of --listen, and 50099."
        ),
    ] = None,
    switch_mac: Annotated[
        str | None,
        typer.Option(help="compatible: where clients address their frames; the MAC address of --listen's interface."),
    ] = None,
) -> None:
    """Serve an address until SIGINT, SIGTERM or SIGHUP comes. Says `ready ADDRESS:PORT` when it does.

    Beside the control socket a file, CONTROL.epoch, stays: the next aggregator there goes on counting epochs, so that
    it knows what is late from before its start.

    Example: switch-agg serve --listen 10.0.0.9 --control /run/agg.sock --metrics 9465 --link-mbps 100
    """
    address = _address(listen)
    ending = Ending()
    with ExitStack() as stack:
        with ending.setting_up():
            plane: DataPlane
            if compatible or not data_plane(dataplane).in_kernel:
                for name, is_default in (
                    ("--switch-pid", switch_pid is None),
                    ("--interface", interface is None),
                    ("--elements", elements == _PROGRAM_ELEMENTS),
                    ("--payload", payload == _PROGRAM_PAYLOAD),
                    ("--slots", slots == _PROGRAM_SLOTS),
                ):
                    if not is_default:
                        raise JobError(f"{name}: has a meaning only with --dataplane ebpf")
            if compatible:
                if not data_plane(dataplane).serves_switchml:
                    able = " or ".join(each for each in data_planes() if data_plane(each).serves_switchml)
                    raise JobError(f"--compatible: the data plane {dataplane} does not serve it; {able} does")
                plane = _compatible_plane(stack, listen, address, sessions, switch_mac)
            else:
                for name, given in (("--sessions", sessions), ("--switch-mac", switch_mac)):
                    if given is not None:
                        raise JobError(f"{name}: has a meaning only with --compatible")
                epochs = Epochs(memory=control.with_name(f"{control.name}.epoch"))
                plane = _plane(dataplane, address, epochs, switch_pid, interface, elements, payload, slots)
                stack.callback(plane.close)
            rate_bps = None if link_mbps is None else link_mbps * 1e6
            name = SWITCHML if compatible else dataplane
            since_s = clock.now_s()
            status = partial(status_of, plane, name=name, address=address, since_s=since_s, link_rate_bps=rate_bps)
            stack.enter_context(served(plane, control, status))
            if metrics is not None:
                _export(stack, metrics, status)
        sys.stdout.write(f"ready {address[0]}:{address[1]}\n")
        sys.stdout.flush()
        while ending.arrived is None:
            plane.check()
            time.sleep(_LOOK_S)


@app.command()
def configure(
    workers: Annotated[
        str, typer.Option(help="IPv4 addresses of the workers, with commas, in the order of their indices.")
    ],
    control: Control = DEFAULT_CONTROL,
    number: Annotated[int, typer.Option(help="0 to 15.")] = 0,
    elements: Annotated[int, typer.Option(help="Of a chunk: 32, 64, ... 2048; from 512 on with jumbo frames.")] = 256,
    payload: Annotated[
        PayloadName, typer.Option(help="In each element: an integer of 32 bits, two of 16 (fp16), four of 8.")
    ] = "int32",
    slots: Annotated[
        int, typer.Option(help="Of the pool, a power of two: rate x round trip / frame fill a link.")
    ] = 128,
    first_slot: Annotated[int, typer.Option(help="Jobs that share an aggregator have slots of their own.")] = 0,
    straggler_timeout: Annotated[float | None, typer.Option(help="Seconds until a partial sum is given out.")] = None,
) -> None:
    """Serve a job.

    Example: switch-agg configure --control /run/agg.sock --workers 10.0.0.1,10.0.0.2
    """
    with _options_named(), ControlClient(control) as client:
        client.configure(
            Job(
                number=number,
                workers=tuple(workers.split(",")),
                num_elements=elements,
                payload=payload,
                num_slots=slots,
                first_slot=first_slot,
                straggler_timeout_s=straggler_timeout,
            )
        )


@app.command()
def remove(number: JobNumber, control: Control = DEFAULT_CONTROL) -> None:
    """Serve a job no longer."""
    with ControlClient(control) as client:
        client.remove(number)


@app.command()
def reset(number: JobNumber, control: Control = DEFAULT_CONTROL) -> None:
    """Begin another epoch of a job: what is under way is done again."""
    with ControlClient(control) as client:
        sys.stdout.write(f"epoch {client.reset(number)}\n")


@app.command()
def inject(
    faults: Annotated[
        str, typer.Argument(help='JSON: {"seed": 1, "up": {"loss": 0.01}, "down": {"duplicate": 0.01}}.')
    ],
    control: Control = DEFAULT_CONTROL,
) -> None:
    """Let datagrams be lost, doubled, held back or corrupted, from a seed; `{}` ends it."""
    with ControlClient(control) as client:
        client.inject(Faults.model_validate_json(faults))


@app.command()
def status(
    control: Control = DEFAULT_CONTROL, as_json: Annotated[bool, typer.Option("--json", help="One object.")] = False
) -> None:
    """Jobs, epochs, counters, and who lets the others wait."""
    with ControlClient(control) as client:
        found = client.status()
    if as_json:
        jobs = [{**asdict(each), "job": each.job.model_dump()} for each in found.jobs]
        sys.stdout.write(json.dumps({**asdict(found), "jobs": jobs}) + "\n")
    else:
        Console().print(render(found, None))


@app.command()
def top(
    control: Control = DEFAULT_CONTROL,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=3600)] = 1.0,
    count: Annotated[int | None, typer.Option(help="End after so many.")] = None,
) -> None:
    """The same again and again, with rates, until Ctrl-C."""
    before: Status | None = None
    with ControlClient(control) as client, Live(console=Console(), auto_refresh=False) as live:
        while count is None or count > 0:
            found = client.status()
            live.update(render(found, before), refresh=True)
            before, count = found, None if count is None else count - 1
            if count != 0:
                time.sleep(interval)


@contextmanager
def _options_named() -> Iterator[None]:
    """What is wrong with a job's fields, said of the options that they come from."""
    try:
        yield
    except (JobError, ValidationError) as error:
        said = explained(error) if isinstance(error, ValidationError) else str(error)
        field, colon, rest = said.partition(":")
        raise JobError(f"{_OPTIONS[field]}{colon}{rest}" if field in _OPTIONS else said) from error


_OPTIONS: Final = {
    "number": "--number",
    "workers": "--workers",
    "num_elements": "--elements",
    "payload": "--payload",
    "num_slots": "--slots",
    "first_slot": "--first-slot",
    "first_slot + num_slots": "--first-slot + --slots",
    "straggler_timeout_s": "--straggler-timeout",
}


def _address(text: str) -> Address:
    host, _, port = text.partition(":")
    try:
        IPv4Address(host)
    except ValueError:
        raise JobError(f"--listen {text}: {host!r} is no IPv4 address, such as 10.0.0.9") from None
    number = int(port) if port.isdecimal() else PORTS[0]
    if (port and not port.isdecimal()) or number not in PORTS:
        raise JobError(f"--listen {text}: the port is one of {PORTS[0]} to {PORTS[-1]}")
    return host, number


def _plane(
    kind: str,
    address: Address,
    epochs: Epochs,
    switch_pid: int | None,
    interface: str | None,
    elements: int,
    payload: PayloadName,
    slots: int,
) -> DataPlane:
    generation = secrets.randbits(32)
    plane, program = data_plane(kind), None
    try:
        if plane.in_kernel:
            if switch_pid is None or interface is None:
                raise JobError(f"--dataplane {kind} needs --switch-pid and --interface: where the program is attached")
            _require_interface(switch_pid, interface)
            program = Program(
                num_elements=elements,
                payload=payload,
                num_slots=slots,
                switch=partial(in_network_of, switch_pid),
                interface=interface,
            )
        with _options_named():
            try:
                size_code(elements)
            except ValueError as error:
                raise JobError(f"num_elements: {error}") from error
            return plane.open(address, generation=generation, epochs=epochs, program=program)
    except OSError as error:
        fix = _ADDRESS_FIXES.get(error.errno or 0, "")
        raise UnsupportedError(f"--listen {address[0]}:{address[1]}: {error.strerror}{fix}") from error


_ADDRESS_FIXES: Final = {
    EADDRINUSE: "; another aggregator has it: end that one, or listen at another port",
    EADDRNOTAVAIL: "; no interface here has it: `ip address add` gives it one",
}


def _compatible_plane(
    stack: ExitStack, listen: str, address: Address, sessions: str | None, switch_mac: str | None
) -> "SwitchMLDataPlane":
    """The data plane for p4app-switchML's clients with its session service, both ended by the stack."""
    from switch_agg.switchml.addresses import mac_of, parse_mac
    from switch_agg.switchml.plane import SwitchMLDataPlane
    from switch_agg.switchml.service import PORT, sessions_served

    host = address[0]
    if ":" in listen:
        raise JobError(
            f"--listen {listen}: with --compatible all of {PORTS[0]} to {PORTS[-1]} are served; give no port"
        )
    if IPv4Address(host).is_unspecified:
        raise JobError(f"--listen {host}: this address is announced to clients, so it has to be one of this machine's")
    where = _session_address(sessions, host, PORT)
    try:
        mac = mac_of(host) if switch_mac is None else parse_mac(switch_mac)
    except JobError as error:
        raise JobError(f"--switch-mac: {error}") from error
    try:
        plane = SwitchMLDataPlane(host)
    except OSError as error:
        fix = _ADDRESS_FIXES.get(error.errno or 0, "")
        raise UnsupportedError(f"--listen {host}, port {error.filename}: {error.strerror}{fix}") from error
    stack.callback(plane.close)
    stack.enter_context(sessions_served(plane, where, mac=mac, report=_report))
    _report(f"sessions at {where[0]}:{where[1]}; frames to {mac.to_bytes(6, 'big').hex(':')}")
    return plane


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _session_address(text: str | None, host: str, port: int) -> Address:
    """Raises JobError."""
    if text is None:
        return host, port
    own, colon, number = text.partition(":")
    try:
        IPv4Address(own)
    except ValueError:
        raise JobError(f"--sessions {text}: {own!r} is no IPv4 address, such as 10.0.0.9") from None
    if colon and not (number.isdecimal() and 0 < int(number) < 1 << 16):
        raise JobError(f"--sessions {text}: the port is one of 1 to 65535")
    return own, int(number) if colon else port


def _require_interface(pid: int, name: str) -> None:
    """Raises JobError, UnsupportedError for an interface that cannot be reached."""
    try:
        with in_network_of(pid):
            names = [each for _, each in socket.if_nameindex()]
    except FileNotFoundError:
        raise JobError(f"--switch-pid {pid}: there is no such process") from None
    except OSError as error:
        raise UnsupportedError(f"--switch-pid {pid}: its network namespace needs root ({error.strerror})") from error
    if name not in names:
        raise JobError(f"--interface {name}: the namespace of process {pid} has {', '.join(names)}")


def _export(stack: ExitStack, port: int, status: Callable[[], Status]) -> None:
    from prometheus_client import CollectorRegistry, start_http_server

    from switch_agg.metrics import AggregatorCollector

    registry = CollectorRegistry()
    registry.register(AggregatorCollector(lambda: [_scraped(status())]))
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise UnsupportedError(f"--metrics {port}: {error.strerror}; choose another port") from error
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)


def _scraped(status: Status) -> "Scraped":
    from switch_agg.metrics import Scraped

    bounds = [status.bound_elements_per_s(each.job) for each in status.jobs]
    return Scraped(status=status, bound_elements_per_s=min((each for each in bounds if each is not None), default=None))


def main() -> None:
    """Errors are one line; 2 what was requested cannot be, 3 something is missing on this machine, 130 interrupted
    before it served, and cleaned."""
    try:
        app()
    except Interrupted as interrupted:
        with suppress(OSError):  # the terminal is gone
            _report(f"switch-agg: {interrupted}: interrupted; everything that was made has been removed")
        sys.exit(EXIT_INTERRUPTED)
    except (JobError, ValidationError) as error:
        said = explained(error) if isinstance(error, ValidationError) else str(error)
        sys.stderr.write(f"switch-agg: {said}\n")
        sys.exit(2)
    except (AggregationError, OSError) as error:
        sys.stderr.write(f"switch-agg: {error}\n")
        sys.exit(3)


if __name__ == "__main__":
    main()

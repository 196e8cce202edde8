"""A real switch for tests: namespaces of workers around one that routes, and one for each aggregator's address."""

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from switch_agg.client import Client
from switch_agg.dataplanes.base import DataPlane, Program, data_plane
from switch_agg.epochs import Epochs
from switch_agg.errors import AggregationError
from switch_agg.job import Job
from switch_agg.namespaces import in_network_of
from switch_agg.payload import PayloadName

PORT = 0xBEE0
AGGREGATOR = "10.9.255.2"
"""Of the first aggregator; the next is 10.9.254.2."""
NO_IPV6 = "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1"
NO_FORWARDING = "sysctl -qw net.ipv4.ip_forward=0"
"""New namespaces inherit it, and Docker switches it on."""
"""Its router solicitations would be among the bytes."""


def run(pid: int, *lines: str) -> None:
    """Commands inside a namespace."""
    for line in lines:
        subprocess.run(["nsenter", "-t", str(pid), "-n", *line.split()], check=True, capture_output=True, text=True)


def held_namespace(stack: ExitStack) -> int:
    """A network namespace of its own, by the pid of what holds it until the stack ends."""
    # cat ends when its standard input does: at the latest with this process.
    holder = subprocess.Popen(
        ["unshare", "-n", "sh", "-c", f"{NO_IPV6}; {NO_FORWARDING}; ip link set lo up; echo; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    holder.stdout.readline()
    stack.callback(holder.wait)
    stack.callback(holder.stdout.close)
    stack.callback(holder.stdin.close)
    return holder.pid


class Rack:
    """Worker i is 10.9.i.1 behind port p<i> of the switch."""

    def __init__(self, stack: ExitStack, num_workers: int, *, mtu: int = 1500, num_aggregators: int = 1) -> None:
        self.num_workers = num_workers
        self.switch = held_namespace(stack)
        self.aggregators = [held_namespace(stack) for _ in range(num_aggregators)]
        self.workers = [held_namespace(stack) for _ in range(num_workers)]
        run(self.switch, "sysctl -qw net.ipv4.ip_forward=1")
        for index, pid in enumerate(self.workers):
            self._link(f"p{index}", f"10.9.{index}.2", pid, f"10.9.{index}.1", mtu)
        for number, pid in enumerate(self.aggregators):
            self._link(f"agg{number}", f"10.9.{255 - number}.1", pid, f"10.9.{255 - number}.2", mtu)

    def _link(self, port: str, port_address: str, pid: int, address: str, mtu: int) -> None:
        run(self.switch, f"ip link add {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {pid}")
        run(self.switch, f"ip address add {port_address}/24 dev {port}", f"ip link set {port} up")
        run(
            pid,
            f"ip address add {address}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {port_address}",
        )
        macs = []
        for owner, device in ((self.switch, port), (pid, "eth0")):
            with in_network_of(owner):
                shown = subprocess.run(
                    ["ip", "-br", "link", "show", device], check=True, capture_output=True, text=True
                )
            macs.append(shown.stdout.split()[2])
        run(self.switch, f"ip neighbour replace {address} lladdr {macs[1]} dev {port} nud permanent")
        run(pid, f"ip neighbour replace {port_address} lladdr {macs[0]} dev eth0 nud permanent")

    def job(self, **keys: Any) -> Job:
        """A job of all workers."""
        return Job(
            **{"workers": tuple(f"10.9.{index}.1" for index in range(self.num_workers)), "num_slots": 16, **keys}
        )

    def plane(
        self,
        kind: str,
        *,
        num_elements: int = 256,
        payload: PayloadName = "int32",
        num_slots: int = 64,
        number: int = 0,
    ) -> DataPlane:
        """A data plane of that kind at an aggregator's address; not for two at once."""
        address = (f"10.9.{255 - number}.2", PORT)
        with in_network_of(self.aggregators[number]):
            program = Program(
                num_elements=num_elements,
                payload=payload,
                num_slots=num_slots,
                switch=partial(in_network_of, self.switch),
                interface=f"agg{number}",
            )
            return data_plane(kind).open(address, generation=5, epochs=Epochs(first=0), program=program)

    def client(self, job: Job, index: int, **keys: Any) -> Client:
        """Worker `index` of the job."""
        with in_network_of(self.workers[index]):
            return Client(job, index, (AGGREGATOR, PORT), local=(job.workers[index], 4000), **keys)

    def socket(self, index: int, port: int = 4000) -> socket.socket:
        """A plain UDP socket of a worker."""
        with in_network_of(self.workers[index]):
            opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind((f"10.9.{index}.1", port))
        opened.settimeout(10)
        return opened


@contextmanager
def rack(num_workers: int, *, mtu: int = 1500, num_aggregators: int = 1) -> Iterator[Rack]:
    """A rack, removed at the end."""
    with ExitStack() as stack:
        yield Rack(stack, num_workers, mtu=mtu, num_aggregators=num_aggregators)


def everybody(clients: list[Client], do: Callable[[int, Client], Any]) -> list[Any]:
    """The same on every worker at once; what one raises is its result."""
    results: list[Any] = [None] * len(clients)

    def one(index: int) -> None:
        try:
            results[index] = do(index, clients[index])
        except (AggregationError, OSError) as error:
            results[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results

"""Two network namespaces that play machines, and the wire between them."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.rack import held_namespace, run

ADDRESSES = ("10.99.0.1", "10.99.0.2")


class Underlay:
    """Machine m<i> is 10.99.0.<i + 1> on its interface `u`."""

    def __init__(self, stack: ExitStack, folder: Path, *, mtu: int = 1600) -> None:
        self._folder = folder
        self.pids = [held_namespace(stack) for _ in ADDRESSES]
        first, second = self.pids
        run(first, f"ip link add name u mtu {mtu} type veth peer name u mtu {mtu} netns {second}")
        for pid, address in zip(self.pids, ADDRESSES, strict=True):
            run(pid, f"ip address add {address}/24 dev u", "ip link set u up")

    def data(self, first: list[str], second: list[str]) -> dict[str, Any]:
        """What a file of machines says, with these nodes on each."""
        return {
            "machines": {
                f"m{index}": {"address": address, "namespace": f"/proc/{pid}/ns/net", "nodes": nodes}
                for index, (address, pid, nodes) in enumerate(zip(ADDRESSES, self.pids, (first, second), strict=True))
            }
        }

    def file(self, first: list[str], second: list[str], *, placed: bool = False) -> Path:
        """The same, on disk; without where the machines are, if they are `placed` by somebody else."""
        data = self.data(first, second)
        for machine in data["machines"].values() if placed else ():
            del machine["namespace"]
        path = self._folder / "machines.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    def slow_down(self, rate: str) -> None:
        """Both directions, with a queue that TCP can fill."""
        for pid in self.pids:
            run(
                pid,
                "tc qdisc add dev u root handle 1: htb default 1",
                f"tc class add dev u parent 1: classid 1:1 htb rate {rate} burst 20000 quantum 60000",
                "tc qdisc add dev u parent 1:1 bfifo limit 1000000",
            )

    def sent_bytes(self, index: int) -> int:
        """By that machine so far, over the wire."""
        text = Path(f"/proc/{self.pids[index]}/net/dev").read_text()
        (line,) = (line for line in text.splitlines() if line.strip().startswith("u:"))
        return int(line.split()[9])

    def sockets(self) -> list[str]:
        """Of the kernel's and of programs, that are open for datagrams on a machine."""
        return [line for pid in self.pids for line in Path(f"/proc/{pid}/net/udp").read_text().splitlines()[1:]]

"""The transports without the testbed: torchrun on machines in different subnets, played by namespaces with a router."""

import math
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.rack import Rack, run

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(170)]

NUM_MACHINES: Final = 3
DDP: Final = Path(__file__).resolve().parents[2] / "examples" / "ddp.py"
GRADIENT_BYTES: Final = 4 * (64 * 512 + 512 + 512 * 10 + 10)


class Machines:
    """Machine i has 10.9.i.1 on `eth0`, for data, and 10.8.i.1 on `eth1`, for everything else; both are routed."""

    def __init__(self, stack: ExitStack) -> None:
        self.rack = Rack(stack, NUM_MACHINES)
        for index, pid in enumerate(self.rack.workers):
            run(self.rack.switch, f"ip link add m{index} type veth peer name eth1 netns {pid}")
            run(self.rack.switch, f"ip address add 10.8.{index}.2/24 dev m{index}", f"ip link set m{index} up")
            run(pid, f"ip address add 10.8.{index}.1/24 dev eth1", "ip link set eth1 up")
            run(pid, f"ip route add 10.8.0.0/16 via 10.8.{index}.2")

    def torchrun(self, backend: str, **environment: str) -> list[str]:
        """What each machine's ranks print. They meet at 10.8.0.1."""
        words = [
            [
                *("-m", "torch.distributed.run", "--nnodes", str(NUM_MACHINES), "--nproc-per-node", "1"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", "10.8.0.1:29400", "--rdzv-id", "1"),
                *("--rdzv-conf", f"is_host={int(index == 0)}", "--local-addr", f"10.8.{index}.1"),
                *(str(DDP), "--epochs", "2", "--backend", backend),
            ]
            for index in range(NUM_MACHINES)
        ]
        return self._printed(words, [environment] * NUM_MACHINES)

    def with_gloo(self) -> list[str]:
        """What each rank prints of the same training, started without torchrun, which would import torch once more."""
        variables = {"WORLD_SIZE": str(NUM_MACHINES), "MASTER_ADDR": "10.8.0.1", "MASTER_PORT": "29401"}
        variables |= {"LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": "eth0"}
        words = [str(DDP), "--epochs", "2", "--backend", "gloo"]
        return self._printed([words] * NUM_MACHINES, [variables | {"RANK": str(rank)} for rank in range(NUM_MACHINES)])

    def _printed(self, words: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> list[str]:
        """By python with those words on each machine."""
        started = []
        for pid, own, environment in zip(self.rack.workers, words, environments, strict=True):
            variables = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", **environment}
            entered = ["nsenter", "-t", str(pid), "-n", sys.executable, *own]
            started.append(
                subprocess.Popen(entered, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        try:
            said = [process.communicate(timeout=120) for process in started]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0] * NUM_MACHINES, [errors for _, errors in said]
        return [output for output, _ in said]

    def sent_bytes(self, interface: str) -> list[int]:
        """By each machine so far."""
        found = []
        for pid in self.rack.workers:
            text = Path(f"/proc/{pid}/net/dev").read_text()
            counters = re.search(rf"{interface}:(.*)", text)
            assert counters is not None
            found.append(int(counters[1].split()[8]))
        return found


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(stack)


def losses(outputs: list[str]) -> list[str]:
    return [line for output in outputs for line in output.splitlines() if line.startswith("epoch")]


def test_training_over_routed_subnets_is_gloo_s_by_the_interface_that_is_named(machines: Machines) -> None:
    before = machines.sent_bytes("eth0"), machines.sent_bytes("eth1")
    ours = machines.torchrun("testbed", TESTBED_INTERFACE="eth0", TESTBED_COLLECTIVE="ring")
    after = machines.sent_bytes("eth0"), machines.sent_bytes("eth1")
    data, other = (
        [late - early for early, late in zip(*pair, strict=True)] for pair in zip(before, after, strict=True)
    )
    assert all(f"rank {rank} done with testbed" in "".join(ours) for rank in range(NUM_MACHINES))
    samples = math.ceil(1024 / NUM_MACHINES)
    num_iterations = 2 * math.ceil(samples / 64)
    ring_bytes = num_iterations * GRADIENT_BYTES * 2 * (NUM_MACHINES - 1) / NUM_MACHINES
    for sent in data:
        assert ring_bytes < sent < 1.25 * ring_bytes, "the first ones, headers, parameters at the start"
    assert max(other) < 0.1 * ring_bytes, "torchrun's own"
    assert len(losses(ours)) == 2
    assert losses(ours) == losses(machines.with_gloo())


@pytest.mark.slow  # three more starts of torch; which interface it is a unit test says, too
def test_without_a_name_it_is_the_interface_towards_the_master(machines: Machines) -> None:
    before = machines.sent_bytes("eth0")
    assert len(losses(machines.torchrun("testbed"))) == 2
    sent = [after - early for early, after in zip(before, machines.sent_bytes("eth0"), strict=True)]
    assert max(sent) < GRADIENT_BYTES

"""The executor keeps the order that a schedule demands, and no other."""

import math
import time
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch

from transports.channels.base import Completion, Header, PeerStatistics
from transports.channels.framing import DTYPES, OPERATIONS
from transports.collectives.base import Chunk, Collective, Operation, Step, World
from transports.collectives.schedules.dependencies import Dependencies
from transports.execution.executor import SEND_WINDOW, WINDOW, Exchange, Executor

FLOAT32 = DTYPES.index("float32")


class _Given(Collective):
    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce", "broadcast"))

    steps: tuple[Step, ...]

    def schedule(
        self,
        operation: Operation,
        world: World,
        participant: int,
        num_elements: int,
        *,
        element_bytes: int,
        root: int = 0,
    ) -> Sequence[Step]:
        return self.steps


class _Script:
    """An endpoint whose messages complete in the order a test says, and which notes what was posted when."""

    def __init__(self, order: Sequence[str] = (), values: float = 1.0) -> None:
        self.order = list(order)
        self.values = values
        self.headers: list[Header] = []
        self.log: list[str] = []
        self.pending: dict[str, tuple[int, str, memoryview]] = {}
        self.num_tokens = 0

    def _post(self, kind: str, peer: int, header: Header, view: memoryview) -> int:
        name = f"{kind}{header.phase}@{peer}"
        self.num_tokens += 1
        self.headers.append(header)
        self.log.append(name)
        self.pending[name] = (self.num_tokens, kind, view)
        return self.num_tokens

    def post_send(self, peer: int, header: Header, view: memoryview) -> int:
        return self._post("send", peer, header, view)

    def post_receive(self, peer: int, header: Header, view: memoryview) -> int:
        return self._post("receive", peer, header, view)

    def skip(self, sequence: int) -> None:
        self.log.append(f"skip {sequence}")

    def progress(self, deadline_s: float, until_s: float = math.inf) -> Sequence[Completion]:
        name = self.order.pop(0) if self.order else next(iter(self.pending))
        token, kind, view = self.pending.pop(name)
        self.log.append(f"done {name}")
        if kind == "receive":
            view[:] = torch.full((len(view) // 4,), self.values).view(torch.uint8).numpy().data
        return [Completion(token)]

    def peek(self, peer: int, deadline_s: float) -> Header | None:
        raise AssertionError("who sends what is known")

    def compile(self, steps: Sequence[Step], order: Dependencies, header: Header, reduction: int) -> None:
        return None

    def departure(self, peer: int) -> None:
        return None

    def wake(self) -> None:
        raise AssertionError("nobody waits")

    def let_go(self) -> None:
        raise AssertionError("the executor leaves that to others")

    def statistics(self) -> dict[int, PeerStatistics]:
        return {}

    def congestion(self) -> dict[int, str]:
        return {}

    def close(self) -> None:
        self.log.append("close")


def step(kind: str, start: int, count: int, peer: int = 1) -> Step:
    return Step(kind, Chunk("output", start, count), peer)  # type: ignore[arg-type]


def run(steps: tuple[Step, ...], endpoint: _Script, output: torch.Tensor) -> float | None:
    executor = Executor(_Given(steps=steps), endpoint, world=World(num_workers=3), participant=0, group=9)
    program = executor.program(Exchange("all_reduce", len(output), FLOAT32))
    return executor.run(program, {"output": output}, sequence=5, deadline_s=time.monotonic() + 10)


def test_an_operation_without_steps_is_skipped() -> None:
    endpoint, output = _Script(), torch.zeros(4)
    assert run((), endpoint, output) is None
    assert endpoint.log == ["skip 5"]


def test_a_send_is_posted_when_its_values_have_been_added() -> None:
    endpoint, output = _Script(), torch.zeros(4)
    run((step("reduce", 0, 4), step("send", 0, 4, peer=2)), endpoint, output)
    assert endpoint.log == ["receive0@1", "done receive0@1", "send0@2", "done send0@2"]
    assert output.tolist() == [1.0] * 4


def test_independent_steps_are_posted_at_once() -> None:
    endpoint = _Script()
    run((step("send", 0, 2), step("reduce", 2, 2)), endpoint, torch.zeros(4))
    assert endpoint.log[:2] == ["send0@1", "receive0@1"]


def test_a_message_that_comes_early_is_added_when_the_send_before_it_has_left() -> None:
    endpoint = _Script(order=["receive0@1", "send0@2"])
    output = torch.zeros(4)
    run((step("send", 0, 4, peer=2), step("reduce", 0, 4)), endpoint, output)
    assert endpoint.log == ["send0@2", "receive0@1", "done receive0@1", "done send0@2"]
    assert output.tolist() == [1.0] * 4


def test_a_receive_is_not_posted_into_what_is_still_being_sent() -> None:
    endpoint = _Script()
    run((step("send", 0, 4, peer=2), step("receive", 0, 4)), endpoint, torch.zeros(4))
    assert endpoint.log == ["send0@2", "done send0@2", "receive0@1", "done receive0@1"]


def test_no_more_than_a_window_is_posted_per_lane() -> None:
    endpoint = _Script()
    run(tuple(step("reduce", 0, 4) for _ in range(3 * WINDOW)), endpoint, output := torch.zeros(4))
    assert endpoint.log[:WINDOW] == [f"receive{phase}@1" for phase in range(WINDOW)]
    assert endpoint.log[WINDOW] == "done receive0@1"
    assert output.tolist() == [3.0 * WINDOW] * 4


def test_sends_that_await_their_acknowledgement_do_not_hold_back_what_follows() -> None:
    """On a path of 10 ms four messages of 512 KiB are 0.8 of what 1 Gbit/s carries until the first is acknowledged."""
    endpoint = _Script()
    run(tuple(step("send", phase, 1) for phase in range(2 * SEND_WINDOW)), endpoint, torch.zeros(2 * SEND_WINDOW))
    assert endpoint.log[:SEND_WINDOW] == [f"send{phase}@1" for phase in range(SEND_WINDOW)]
    assert endpoint.log[SEND_WINDOW] == "done send0@1"


def test_headers_say_what_travels() -> None:
    endpoint = _Script()
    run((step("send", 0, 3), step("send", 3, 1)), endpoint, torch.zeros(4))
    assert endpoint.headers == [
        Header(9, 5, OPERATIONS.index("all_reduce"), FLOAT32, 3, 0, total=4),
        Header(9, 5, OPERATIONS.index("all_reduce"), FLOAT32, 1, 1, total=4),
    ]


def test_nothing_to_do_takes_no_endpoint() -> None:
    assert run((), _Script(), torch.zeros(0)) is None


def test_the_first_byte_is_timed() -> None:
    before_s = time.monotonic()
    first_s = run((step("send", 0, 4),), _Script(), torch.zeros(4))
    assert first_s is not None
    assert before_s <= first_s <= time.monotonic()


@pytest.mark.filterwarnings("error::RuntimeWarning")  # numpy's; not what the garbage collector says of others' sockets
def test_infinite_values_are_added_in_silence() -> None:
    output = torch.tensor([3e38, -float("inf")])
    run((step("reduce", 0, 2),), _Script(values=3e38), output)
    assert output.tolist() == [float("inf"), -float("inf")]

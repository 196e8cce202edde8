"""As much of the module `ray` as an engine uses, in one process: actors that answer one call after the other, each on a
thread of its own, and machines that fall silent or die. What a slot does there is a test's.

A machine is silent when a test says so. One that is not always answers in time: threads of a busy machine wait for
each other longer than an engine does for a machine, and that is nothing that a test of the engine is about."""

import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from testbed.runner.engines._cluster import RESOURCE


class GetTimeoutError(Exception):
    """Nothing has come in time."""


class RayError(Exception):
    """The actor is gone."""


class RayTaskError(RayError):
    """The actor's method raised."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass
class Node:
    """A machine."""

    address: str
    alive: bool = True
    answers: threading.Event = field(default_factory=threading.Event)
    """Answers are held back while it is not set."""

    def __post_init__(self) -> None:
        self.answers.set()


@dataclass(frozen=True)
class Call:
    """Of an actor's method."""

    node: Node
    answer: "Future[Any]"


class Actor:
    """Every attribute is a method with `remote`."""

    def __init__(self, node: Node, slot: Any) -> None:
        self._node = node
        self._slot = slot
        self._thread = ThreadPoolExecutor(1)
        self.killed = False

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> Call:
            return Call(self._node, self._thread.submit(self._call, method, arguments))

        return SimpleNamespace(remote=remote)

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        answer = None
        try:
            answer = getattr(self._slot, method)(*arguments)
        finally:
            self._node.answers.wait()
            if self.killed or not self._node.alive:
                raise RayError("the actor died")
        return answer


class FakeRay:
    """The module."""

    exceptions = SimpleNamespace(GetTimeoutError=GetTimeoutError, RayTaskError=RayTaskError, RayError=RayError)
    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node_id, soft: (node_id, soft))
    )

    def __init__(self, machines: dict[str, Node], make_slot: Callable[[Node], Any]) -> None:
        """`machines` by node id."""
        self.machines = machines
        self._make_slot = make_slot
        self._actors: dict[str, Actor] = {}

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": node_id, "Alive": node.alive, "NodeManagerAddress": node.address, "Resources": {RESOURCE: 1}}
            for node_id, node in self.machines.items()
        ]

    def get_actor(self, name: str, *, namespace: str) -> Actor:
        if name not in self._actors:
            raise ValueError(name)
        return self._actors[name]

    def remote(self, _: type) -> Any:
        def options(*, name: str, scheduling_strategy: tuple[str, bool], **_: Any) -> Any:
            def create(**_: Any) -> Actor:
                node = self.machines[scheduling_strategy[0]]
                self._actors[name] = Actor(node, self._make_slot(node))
                return self._actors[name]

            return SimpleNamespace(remote=create)

        return SimpleNamespace(options=options)

    def get(self, call: Call, *, timeout: float) -> Any:
        while not futures.wait([call.answer], timeout).done:
            if not call.node.answers.is_set():
                raise GetTimeoutError
            timeout = 0.01
        try:
            return call.answer.result()
        except RayError:
            raise
        except Exception as error:
            raise RayTaskError(error) from error

    def wait(self, calls: list[Call], *, num_returns: int, timeout: float) -> None:
        futures.wait([call.answer for call in calls], timeout)

    def kill(self, actor: Actor, *, no_restart: bool) -> None:
        actor.killed = True
        self._actors = {name: each for name, each in self._actors.items() if each is not actor}

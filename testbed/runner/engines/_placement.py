"""The agents of an emulation over several machines, started by the actors that make the runs of sweeps: each holds the
resource and the lock of its machine, and ends the agent when its lease ends (_slot)."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from testbed.errors import MissingRequirementError
from testbed.hosts.machines import Launch, Started
from testbed.plan.machines import Machine
from testbed.runner.engines._cluster import RESOURCE, connected
from testbed.runner.engines._lease import RefusedError, Timing
from testbed.runner.engines._machine import slot_actor
from testbed.runner.engines._slot import AgentRequest, Status, describe_here
from testbed.system.run_state import RunState

_START_TIMEOUT_S: Final = 120.0
"""For an actor's process, which imports this package, and for what it examines before it first answers."""
_SESSION: Final = 1
"""A run is its slots' only session, and starts one agent on each."""


@contextmanager
def placed_by_ray(address: str | None, state: RunState, *, timing: Timing | None = None) -> Iterator[Launch]:
    """Starts agents on the machines of a Ray cluster. Raises MissingRequirementError without Ray or a cluster."""
    with connected(address) as ray:

        def launch(machine: Machine, path: Path) -> Started:
            return _Placed(ray, machine, path, state, timing or Timing())

        yield launch


class _Placed:
    """One agent, its machine's slot, and a thread that prolongs the lease."""

    def __init__(self, ray: Any, machine: Machine, path: Path, state: RunState, timing: Timing) -> None:
        self._ray = ray
        self._timing = timing
        self._title = f"machine {machine.name}"
        self._ended = threading.Event()
        self._exit_code: int | None = None
        self._said = ""
        self._actor = slot_actor(ray, self._node_id(machine), timing=timing)
        self._thread = threading.Thread(target=self._keep, name=self._title, daemon=True)
        try:
            self._begin(path, state)
        except BaseException:
            self.stop()
            raise
        self._thread.start()

    def _begin(self, path: Path, state: RunState) -> None:
        there = self._answer(self._actor.claim.remote(str(state.directory), _SESSION), _START_TIMEOUT_S)
        if unlike := describe_here().unlike(there, with_costs=False):
            raise MissingRequirementError(f"{self._title} is unlike the one of this command: {'; '.join(unlike)}")
        request = AgentRequest(number=_SESSION, run_id=state.run_id, path=str(path))
        self._answer(self._actor.start.remote(_SESSION, request), self._timing.lease_s)

    def _node_id(self, machine: Machine) -> str:
        """Raises MissingRequirementError where no machine of the cluster is it."""
        if machine.namespace is not None:
            raise MissingRequirementError(
                f"machines.{machine.name}.namespace: with --engine ray a machine is found by its address; leave it out"
            )
        there = {
            str(node["NodeManagerAddress"]): str(node["NodeID"])
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get(RESOURCE, 0) >= 1
        }
        if machine.address not in there:
            raise MissingRequirementError(
                f"machines.{machine.name}.address: no machine of the Ray cluster with a slot is {machine.address} "
                f"(there are {', '.join(there) or 'none'}); start it with ray start --node-ip-address "
                f"{machine.address} --resources '{{\"{RESOURCE}\": 1}}' ..."
            )
        return there[machine.address]

    def _answer(self, call: Any, patience_s: float) -> Any:
        """Of a call. Raises MissingRequirementError with what is wrong there."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=patience_s)
        except errors.GetTimeoutError:
            reason = f"its slot has not answered for {patience_s:.0f} s: it may be another sweep's or run's"
        except errors.RayTaskError as error:
            cause = error.cause
            reason = str(cause) if isinstance(cause, RefusedError) else f"{type(cause).__name__}: {cause}"
        except errors.RayError as error:
            reason = f"its slot is gone: {error}"
        raise MissingRequirementError(f"{self._title}: {reason}")

    def _keep(self) -> None:
        while not self._ended.wait(self._timing.lease_s / 4):
            try:
                status: Status = self._answer(self._actor.poll.remote(_SESSION), self._timing.over_s)
            except MissingRequirementError as error:
                self._said, self._exit_code = str(error), 1
                return
            self._said = status.said
            if status.exit_code is not None:
                self._exit_code = status.exit_code
                return

    def poll(self) -> int | None:
        """Its exit status, soon after it has one; None while it runs."""
        return self._exit_code

    def said(self) -> str:
        """The end of what it printed, or why nobody knows."""
        return self._said

    def stop(self) -> None:
        """End the agent and let the machine go. Idempotent."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with suppress(MissingRequirementError):  # its keeper ends the agent when it has no slot any more
            self._answer(self._actor.release.remote(_SESSION), 2 * self._timing.grace_s + 10)
        self._ray.kill(self._actor, no_restart=True)

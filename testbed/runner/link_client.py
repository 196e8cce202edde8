"""Asks a run that goes on about its links: the other end of testbed.deployment.link_service."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from testbed.control import links_pb2 as messages
from testbed.control.links_pb2_grpc import LinksStub
from testbed.errors import MissingRequirementError, SpecError
from testbed.record.status import alive_runs, choose
from testbed.system.run_state import RUN_ROOT

SOCKET_NAME: Final = "links.sock"
_TIMEOUT_S: Final = 10.0
_CARRIER: Final = {
    None: messages.ChangeRequest.UNCHANGED,
    "up": messages.ChangeRequest.UP,
    "down": messages.ChangeRequest.DOWN,
}


def live_run_ids(*, root: Path = RUN_ROOT) -> list[str]:
    """The runs that go on and answer about their links, oldest first."""
    return [run_id for run_id in alive_runs(root=root) if (root / run_id / SOCKET_NAME).exists()]


def choose_run(name: str | None, *, root: Path = RUN_ROOT) -> str:
    """A run by its id or the beginning of it, `last`, or None for the only one. Raises SpecError with those alive."""
    return choose(name, live_run_ids(root=root))


@contextmanager
def _stub(run_id: str, root: Path) -> Iterator[LinksStub]:
    path = root / run_id / SOCKET_NAME
    with grpc.insecure_channel(f"unix:{path}") as channel:
        try:
            yield LinksStub(channel)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code is grpc.StatusCode.INVALID_ARGUMENT:
                raise SpecError(details) from None
            if code is grpc.StatusCode.UNAVAILABLE:
                raise MissingRequirementError(f"run {run_id} does not answer on {path}: {details}") from None
            raise MissingRequirementError(f"run {run_id}: {details}") from None


def show_links(run_id: str, *, root: Path = RUN_ROOT) -> list[dict[str, Any]]:
    """Every direction of the run's links now, as plain data. Raises MissingRequirementError if it does not answer."""
    with _stub(run_id, root) as stub:
        reply = stub.Show(messages.ShowRequest(), timeout=_TIMEOUT_S)
    return [
        {
            "link": each.link,
            "from": each.sender,
            "to": each.receiver,
            "down": each.down,
            "requested": json.loads(each.requested_json),
            "used_bps": each.used_bps,
            "backlog_bytes": each.backlog_bytes,
            "drops": each.num_drops,
            "marks": each.num_marks,
        }
        for each in reply.directions
    ]


def change_links(
    run_id: str, link: str, settings: Mapping[str, str], *, carrier: str | None = None, root: Path = RUN_ROOT
) -> list[dict[str, str]]:
    """Change the links that the selector names; what became what, as plain data.

    Raises SpecError when the change is not possible and MissingRequirementError when it did not take.
    """
    request = messages.ChangeRequest(link=link, settings_json=json.dumps(dict(settings)), carrier=_CARRIER[carrier])
    with _stub(run_id, root) as stub:
        reply = stub.Change(request, timeout=_TIMEOUT_S)
    return [
        {
            "link": each.link,
            "from": each.sender,
            "to": each.receiver,
            "setting": each.setting,
            "before": each.before,
            "after": each.after,
        }
        for each in reply.changed
    ]

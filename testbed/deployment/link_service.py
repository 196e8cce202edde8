"""Answers people who ask about, or change, the links of a run that goes on: gRPC on a Unix socket of the run.

The socket lies in the run's directory (0750) and is the group's to use (0660), as the control plane's is.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

from testbed.control import links_pb2 as messages
from testbed.control.links_pb2_grpc import LinksServicer, add_LinksServicer_to_server
from testbed.deployment.live_links import LiveLinks
from testbed.errors import SpecError, TestbedError
from testbed.experiment.changes import LinkChange
from testbed.experiment.link import parse_override

_CARRIER: Final = {
    messages.ChangeRequest.UNCHANGED: None,
    messages.ChangeRequest.UP: False,
    messages.ChangeRequest.DOWN: True,
}


class LinkService(LinksServicer):
    """Serves from construction to :meth:`close`."""

    def __init__(self, socket_path: Path, links: LiveLinks, *, name: str) -> None:
        """`name` is the experiment's."""
        self._links = links
        self._name = name
        self._server = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="links"))
        add_LinksServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{socket_path}")
        self._server.start()
        socket_path.chmod(0o660)

    def close(self) -> None:
        """End the service. Idempotent."""
        self._server.stop(grace=0.5).wait()

    def Show(  # noqa: N802 - the name in links.proto
        self, request: messages.ShowRequest, context: grpc.ServicerContext
    ) -> messages.ShowReply:
        """Every direction as it is now."""
        del request, context
        return messages.ShowReply(
            name=self._name,
            directions=[
                messages.Direction(
                    link=each.direction.link,
                    sender=each.direction.sender.node,
                    receiver=each.direction.receiver.node,
                    requested_json=each.direction.requested.model_dump_json(by_alias=True),
                    down=each.down,
                    used_bps=each.used_bps,
                    backlog_bytes=each.backlog_bytes,
                    num_drops=each.num_drops,
                    num_marks=each.num_marks,
                )
                for each in self._links.now()
            ],
        )

    def Change(  # noqa: N802
        self, request: messages.ChangeRequest, context: grpc.ServicerContext
    ) -> messages.ChangeReply:
        """Change some links, and say what is different now."""
        try:
            change = LinkChange(
                at_s=0.0,
                link=request.link,
                settings=parse_override(json.loads(request.settings_json or "{}")),
                down=_CARRIER[request.carrier],
                source="manual",
                key="link set",
            )
            events = self._links.change(change)
        except SpecError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TestbedError as error:
            context.abort(grpc.StatusCode.INTERNAL, str(error))
        return messages.ChangeReply(
            changed=[
                messages.Changed(
                    link=event.link,
                    sender=event.node,
                    receiver=event.to,
                    setting=event.setting,
                    before=event.before,
                    after=event.after,
                )
                for event in events
            ]
        )

"""Serves a data plane's control over gRPC on a Unix socket, and asks for it."""

import os
import socket
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

import grpc
from pydantic import TypeAdapter, ValidationError

from switch_agg.aggregator import Counters, Stragglers
from switch_agg.control import aggregator_pb2 as pb
from switch_agg.control import aggregator_pb2_grpc as rpc
from switch_agg.errors import AggregationError, JobError, UnsupportedError, explained
from switch_agg.faults import Faults
from switch_agg.job import Job
from switch_agg.payload import PayloadName
from switch_agg.status import JobStatus, Status

Reply = TypeVar("Reply")
TIMEOUT_S = 5.0


class Controlled(Protocol):
    """What the service controls: a data plane, or what stands in for one; see DataPlane."""

    def configure(self, job: Job) -> None:
        """Serve a job."""

    def remove(self, number: int) -> None:
        """Serve it no longer."""

    def reset(self, number: int) -> int:
        """Begin another epoch of it; returns the epoch."""

    def inject(self, faults: Faults) -> None:
        """Let these happen."""


class Servicer(rpc.AggregatorControlServicer):
    """The service's methods: each an operation of the data plane, its errors as gRPC's."""

    def __init__(self, plane: Controlled, status: Callable[[], Status]) -> None:
        self._plane = plane
        self._status = status

    def Configure(self, request: pb.Job, context: grpc.ServicerContext) -> pb.Done:  # noqa: N802 - gRPC's name
        """See the .proto."""
        return _done(context, lambda: self._plane.configure(_addressed(job_of(request))))

    def Remove(self, request: pb.JobNumber, context: grpc.ServicerContext) -> pb.Done:  # noqa: N802
        """See the .proto."""
        return _done(context, lambda: self._plane.remove(request.number))

    def Reset(self, request: pb.JobNumber, context: grpc.ServicerContext) -> pb.Epoch:  # noqa: N802
        """See the .proto."""
        return _answered(context, lambda: pb.Epoch(epoch=self._plane.reset(request.number)))

    def Inject(self, request: pb.Faults, context: grpc.ServicerContext) -> pb.Done:  # noqa: N802
        """See the .proto."""
        return _done(context, lambda: self._plane.inject(Faults.model_validate_json(request.json)))

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:  # noqa: ARG002, N802
        """See the .proto."""
        return _answered(context, lambda: message_of(self._status()))


def _addressed(job: Job) -> Job:
    """The job, whose hosts are addresses. Raises JobError: a datagram's sender is identified by its address alone."""
    for host in (*job.workers, *([job.parent] if job.parent is not None else [])):
        try:
            IPv4Address(host)
        except ValueError:
            raise JobError(f"workers: {host!r} is no IPv4 address, such as 10.0.0.1") from None
    return job


def _done(context: grpc.ServicerContext, do: Callable[[], None]) -> pb.Done:
    _answered(context, do)
    return pb.Done()


def _answered(context: grpc.ServicerContext, do: Callable[[], Reply]) -> Reply:
    try:
        return do()
    except ValidationError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, explained(error))
    except JobError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except UnsupportedError as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    except AggregationError as error:
        context.abort(grpc.StatusCode.INTERNAL, str(error))
    raise AssertionError("abort raises")


@contextmanager
def served(plane: Controlled, path: Path, status: Callable[[], Status]) -> Iterator[None]:
    """The control service on a Unix socket that its owner and group may use. Raises UnsupportedError where there can
    be none, or another is served there."""
    _clear(path)
    server = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="control"))
    rpc.add_AggregatorControlServicer_to_server(Servicer(plane, status), server)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise UnsupportedError(f"--control {path}: no socket can be made there; choose another path") from error
    before = os.umask(0o117)
    try:
        server.start()
    finally:
        os.umask(before)
    try:
        path.chmod(stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IWGRP)
        yield
    finally:
        server.stop(grace=0.5).wait()
        path.unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Remove the socket of an aggregator that is gone. Raises UnsupportedError for one that answers, and for a file."""
    if not path.exists():
        return
    if not path.is_socket():
        raise UnsupportedError(f"--control {path}: there is a file of that name; choose another path")
    if _is_served(path):
        raise UnsupportedError(f"--control {path}: another aggregator is served there; end it, or choose another path")
    path.unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    """Whether somebody listens at the socket. Never waits: one that is stopped may not take the connection for long."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # so many wait for it already that there is no room for another
            return True
        except OSError:
            return False
        return True


class ControlClient:
    """Speaks to an aggregator; every method raises JobError or UnsupportedError with what it said."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._channel = grpc.insecure_channel(f"unix:{path}")
        self._stub = rpc.AggregatorControlStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def configure(self, job: Job) -> None:
        """See DataPlane."""
        self._ask(self._stub.Configure, job_message(job))

    def remove(self, number: int) -> None:
        """See DataPlane."""
        self._ask(self._stub.Remove, pb.JobNumber(number=number))

    def reset(self, number: int) -> int:
        """See DataPlane."""
        return int(self._ask(self._stub.Reset, pb.JobNumber(number=number)).epoch)

    def inject(self, faults: Faults) -> None:
        """See DataPlane."""
        self._ask(self._stub.Inject, pb.Faults(json=faults.model_dump_json()))

    def status(self) -> Status:
        """How it is now."""
        return status_from(self._ask(self._stub.Status, pb.StatusRequest()))

    def _ask(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                raise JobError(error.details()) from error
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise UnsupportedError(
                    f"nobody serves {self._path}: start one with `switch-agg serve --control {self._path}`"
                ) from error
            raise UnsupportedError(error.details()) from error


_PAYLOAD: Final[TypeAdapter[PayloadName]] = TypeAdapter(PayloadName)


def job_of(message: pb.Job) -> Job:
    """Raises ValidationError."""
    return Job(
        number=message.number,
        workers=tuple(message.workers),
        num_elements=message.num_elements,
        payload=_PAYLOAD.validate_python(message.payload or "int32"),
        first_slot=message.first_slot,
        num_slots=message.num_slots,
        parent=message.parent if message.HasField("parent") else None,
        parent_port=message.parent_port,
        parent_index=message.parent_index,
        straggler_timeout_s=message.straggler_timeout_s if message.HasField("straggler_timeout_s") else None,
    )


def job_message(job: Job) -> pb.Job:
    """The inverse of job_of."""
    return pb.Job(**{name: value for name, value in job.model_dump().items() if value is not None})


def message_of(status: Status) -> pb.StatusReply:
    """The inverse of status_from."""
    return pb.StatusReply(
        dataplane=status.dataplane,
        address=status.address,
        jobs=[
            pb.JobStatus(
                job=job_message(each.job),
                epoch=each.epoch,
                gaps=each.stragglers.gaps,
                last=each.stragglers.last,
                partial=each.stragglers.partial,
                busy_slots=each.busy_slots,
            )
            for each in status.jobs
        ],
        counters=status.counters,
        in_flight=status.in_flight,
        violations=status.violations,
        uptime_s=status.uptime_s,
        unsent=status.unsent,
        link_rate_bps=status.link_rate_bps,
    )


def status_from(message: pb.StatusReply) -> Status:
    """A status, from the wire."""
    return Status(
        dataplane=message.dataplane,
        address=message.address,
        jobs=tuple(
            JobStatus(
                job=job_of(each.job),
                epoch=each.epoch,
                stragglers=Stragglers(gaps=tuple(each.gaps), last=tuple(each.last), partial=each.partial),
                busy_slots=each.busy_slots,
            )
            for each in message.jobs
        ),
        # A map of protobuf has no order: that of the counters' own.
        counters={field.name: message.counters[field.name] for field in fields(Counters)},
        in_flight=message.in_flight,
        violations=tuple(message.violations),
        uptime_s=message.uptime_s,
        unsent=dict(message.unsent),
        link_rate_bps=message.link_rate_bps if message.HasField("link_rate_bps") else None,
    )

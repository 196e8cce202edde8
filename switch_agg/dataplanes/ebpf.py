"""The eBPF data plane: contributions are added by a tc program in the switch (native/aggregate.bpf.c).

This side configures the program's maps and answers what the program lets pass: JOIN, LEAVE, RESET, PROBE, and data of
an epoch that is over. Both share the state of the reference's core, whose epochs and members it publishes to the maps.
"""

import ctypes
import json
import socket
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Final

from switch_agg.aggregator import NUM_GAPS, Aggregator, Counters, Stragglers
from switch_agg.core import Address, Datagram
from switch_agg.dataplanes.base import DataPlane, DataPlaneKind, Program, register
from switch_agg.driver import Service, open_socket
from switch_agg.epochs import Epochs
from switch_agg.errors import JobError, UnsupportedError
from switch_agg.faults import Direction, Faults, first_state
from switch_agg.job import MAX_WORKERS, Job
from switch_agg.native.build import build
from switch_agg.native.layout import layout_of
from switch_agg.native.libbpf import BpfObject
from switch_agg.payload import MAX_KERNEL_VALUES, PAYLOADS, PayloadName
from switch_agg.wire import ETHERNET_IP_UDP_BYTES, MAX_JOBS, PORTS, Packet

SOURCE: Final = Path(__file__).resolve().parent / "native" / "aggregate.bpf.c"
PROGRAM: Final = "aggregate"
_DIRECTIONS: Final[tuple[Direction, ...]] = ("up", "down")
_FAULT_NUMBERS: Final = {"loss": 1, "duplicate": 2, "corrupt": 3, "reorder": 4}
_SHARES: Final = 1 << 53
_MAX_LISTED: Final = 4096
"""Entries of the program's map `listed`."""
TRIAL_PORT: Final = 4000
"""From which the workers of a :class:`ProgramTrial` have joined."""
_SHOT: Final = 2
"""TC_ACT_SHOT of linux/pkt_cls.h."""


class _Job(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint32)
        for name in ("num_workers", "epoch", "joined", "first_slot", "num_slots", "generation", "doublings")
    )


class _Worker(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint8 * 4),
        ("port", ctypes.c_uint8 * 2),
        ("source_mac", ctypes.c_uint8 * 6),
        ("mac", ctypes.c_uint8 * 6),
        ("padding", ctypes.c_uint16),
        ("interface", ctypes.c_uint32),
    )


_COUNTERS: Final = (
    "rx",
    "fresh",
    "duplicate_pending",
    "duplicate_done",
    "stale",
    "held",
    "bad_length",
    "bad_format",
    "bad_size",
    "bad_slot",
    "bad_job",
    "bad_worker",
    "from_parent",
    "injected",
    "done",
    "contributions_done",
    "discarded",
    "saturated",
    "tx",
)


class _Counters(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in _COUNTERS)


class _FaultRates(ctypes.Structure):
    _fields_ = (
        ("loss_below", ctypes.c_uint64),
        ("duplicate_below", ctypes.c_uint64),
        ("corrupt_below", ctypes.c_uint64),
        ("reorder_below", ctypes.c_uint64),
        ("listed", ctypes.c_uint32),
        ("reorders", ctypes.c_uint32),
    )


class _Draw(ctypes.Structure):
    _fields_ = (("lock", ctypes.c_uint32), ("padding", ctypes.c_uint32), ("state", ctypes.c_uint64))


class _ListedKey(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("direction", "worker", "chunk", "occurrence"))


class _JobCounters(ctypes.Structure):
    _fields_ = (
        ("gaps", ctypes.c_uint64 * NUM_GAPS),
        ("last", ctypes.c_uint64 * MAX_WORKERS),
        ("unsent", ctypes.c_uint64 * (MAX_WORKERS + 1)),
    )


class _Control(Aggregator):
    """The core without its slots: the kernel has them."""

    def _contribute(self, state: Any, worker: int, packet: Packet, now_s: float) -> None:  # noqa: ARG002
        """Data of the epoch that is current by now: the worker will repeat it, and then the kernel takes it."""
        self.counters.stale += 1


class EbpfDataPlane:
    """Implements switch_agg.dataplanes.base.DataPlane."""

    def __init__(
        self,
        local: Address,
        *,
        generation: int,
        epochs: Epochs | None = None,
        num_elements: int,
        payload: PayloadName = "int32",
        num_slots: int,
        switch: Callable[[], AbstractContextManager[None]],
        interface: str,
    ) -> None:
        """`switch()` enters the switch's network namespace, where `interface` leads to the `local` address.

        All jobs have chunks of `num_elements` of that payload, and `num_slots` slots between them. Raises
        UnsupportedError without clang, libbpf or a kernel that takes the program, or for more elements than it can
        take, and OSError when the address cannot be had: the switch is as it was then.
        """
        self._num_elements = num_elements
        self._payload = payload
        self._num_slots = num_slots
        self._switch = switch
        self._interface = interface
        self._paths: dict[str, _Worker] = {}
        """How the switch reaches each worker, as found when its job was configured."""
        self._generations: dict[int, int] = {}
        self._published: dict[int, tuple[int, int, tuple[tuple[int, int], ...]]] = {}
        self._next_generation = 1
        self._listed: list[_ListedKey] = []
        """Faults in the program's map, by name."""
        self._core = _Control(generation=generation, epochs=epochs)
        object_file = _built(num_elements, payload)
        self._object = BpfObject(object_file, max_entries={"versions": 2 * num_slots, "listed": _MAX_LISTED})
        with ExitStack() as undo:
            undo.callback(self._object.close)
            with switch():
                self._index = socket.if_nametoindex(interface)
                self._object.attach(PROGRAM, self._index)
                # The switch holds the program by itself from now on: closing the object does not end it.
                undo.callback(self._detach)
            opened = undo.enter_context(open_socket(local))
            self.address: Address = opened.getsockname()
            self._service = Service(_Publishing(self._core, self._publish), opened, name="aggregator")
            undo.pop_all()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """See DataPlane."""
        with self._service.lock:
            return self._core.jobs

    def configure(self, job: Job) -> None:
        """See DataPlane."""
        if job.num_elements != self._num_elements:
            raise JobError(f"num_elements: the program in the switch adds {self._num_elements} at a time")
        if job.payload != self._payload:
            raise JobError(f"payload: the program in the switch adds {self._payload}, not {job.payload}")
        if job.first_slot + job.num_slots > self._num_slots:
            raise JobError(f"first_slot + num_slots: the switch has {self._num_slots} slots")
        if job.straggler_timeout_s:
            raise JobError("straggler_timeout_s: the data plane ebpf has none; reference has")
        ways, parent = {host: self._way(host) for host in job.workers}, self._parent(job)
        with self._service.lock:
            self._core.configure(job)
            # From here on nothing may be refused: the core serves the job, and publishes whoever joins it.
            self._paths.update(ways)
            for index, host in enumerate(job.workers):
                self._object.set("worker_index", _who(job.number, host), index)
            self._object.set("parents", job.number, parent)
            self._publish()

    def remove(self, number: int) -> None:
        """See DataPlane."""
        with self._service.lock:
            job = self._job(number)
            self._core.remove(number)
            self._object.set("jobs", number, _Job())
            self._object.set("parents", number, _Worker())
            for host in job.workers:
                self._object.delete("worker_index", _who(number, host))
            for index in range(job.num_workers):
                self._object.set("workers", number * MAX_WORKERS + index, _Worker())
            self._object.clear_per_cpu("job_counts", number, _JobCounters)
            self._published.pop(number, None)
            # What is in its slots is no longer in flight, and whoever gets them next finds them empty.
            self._core.counters.discarded += _in_flight(self._object, _slots(job), job.num_elements, job.payload)
            empty = _version_kind(job.num_elements, job.payload)()
            for key in (2 * slot + half for slot in _slots(job) for half in range(2)):
                self._object.set("versions", key, empty)

    def reset(self, number: int) -> int:
        """See DataPlane."""
        with self._service.lock:
            epoch = self._core.reset(number)
            self._publish()
            return epoch

    def inject(self, faults: Faults) -> None:
        """See DataPlane."""
        reorders = faults.up.reorder or faults.down.reorder or any(each.fault == "reorder" for each in faults.listed)
        entries = _listed_entries(faults)
        with self._service.lock:
            while self._listed:
                self._object.delete("listed", self._listed.pop())
            for where, value in entries.items():
                self._listed.append(_ListedKey(*where))
                self._object.set("listed", self._listed[-1], value)
            for number, direction in enumerate(_DIRECTIONS):
                for worker in range(MAX_WORKERS):
                    state = first_state(faults.seed, direction, worker)
                    self._object.set("draws", number * MAX_WORKERS + worker, _Draw(state=state))
                rates = faults.up if direction == "up" else faults.down
                loss, duplicate = rates.loss, rates.loss + rates.duplicate
                reorder = duplicate + rates.reorder
                requested = _FaultRates(
                    loss_below=int(loss * _SHARES),
                    duplicate_below=int(duplicate * _SHARES),
                    reorder_below=int(reorder * _SHARES),
                    corrupt_below=int((reorder + rates.corrupt) * _SHARES),
                    listed=int(any(each.direction == direction for each in faults.listed)),
                    reorders=int(bool(reorders)),
                )
                self._object.set("fault_rates", number, requested)

    def counters(self) -> Counters:
        """See DataPlane: the kernel's, and what went past it."""
        with self._service.lock:
            found = self._core.counters.copy()
        _add_kernel_counters(found, self._object)
        # Stale data is counted by the program that lets it pass, and again by the one that answers.
        with self._service.lock:
            found.rx -= self._core.counters.rx - self._core.counters.bad
            found.stale -= self._core.counters.stale
        return found

    def unsent(self) -> Mapping[str, int]:
        """See DataPlane: what the program could not send, and what the one that answers could not."""
        with self._service.lock:
            found, jobs = self._service.unsent(), self._core.jobs
        for job in jobs:
            hosts = dict(enumerate(job.workers)) | ({} if job.parent is None else {MAX_WORKERS: job.parent})
            for counted in self._object.get_per_cpu("job_counts", job.number, _JobCounters):
                for index, host in hosts.items():
                    if counted.unsent[index]:
                        found[host] += counted.unsent[index]
        return found

    def in_flight(self) -> int:
        """See DataPlane."""
        with self._service.lock:
            slots = [slot for job in self._core.jobs for slot in _slots(job)]
        return _in_flight(self._object, slots, self._num_elements, self._payload)

    def stragglers(self, number: int) -> Stragglers:
        """See DataPlane."""
        with self._service.lock:
            num_workers = len(self._core.stragglers(number).last)
        found = self._object.get_per_cpu("job_counts", number, _JobCounters)
        return Stragglers(
            gaps=_gaps(found),
            last=tuple(sum(each.last[worker] for each in found) for worker in range(num_workers)),
        )

    def busy_slots(self, number: int) -> int:
        """See DataPlane."""
        with self._service.lock:
            job, generation = self._job(number), self._generations[number]
        halves = _versions(self._object, _slots(job), job.num_elements, job.payload)
        return len({slot for slot, half in halves if half.seen and not half.done and half.generation == generation})

    def epoch(self, number: int) -> int:
        """See DataPlane."""
        with self._service.lock:
            return self._core.membership(number)[0]

    def check(self) -> None:
        """See DataPlane. A program that somebody detached is an error, too."""
        self._service.check()
        with self._switch():
            if not self._object.is_attached(self._index):
                raise UnsupportedError(f"the program is gone from {self._interface}")

    def close(self) -> None:
        """See DataPlane."""
        self._service.close()
        try:
            self._detach()
        finally:
            self._object.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _detach(self) -> None:
        """Take the program off the switch; where that is gone, the program went with it."""
        with suppress(OSError), self._switch():
            self._object.detach(self._index)

    def _job(self, number: int) -> Job:
        """Raises JobError. The lock is held."""
        self._core.membership(number)
        return next(job for job in self._core.jobs if job.number == number)

    def _publish(self) -> None:
        """Tell the program about epochs, members and ports that have changed. The lock is held."""
        for job in self._core.jobs:
            epoch, joined, ports = self._core.membership(job.number)
            state = (epoch, joined, tuple(sorted(ports.items())))
            before = self._published.get(job.number)
            if before == state:
                continue
            if before is None or before[0] != epoch:
                # Nothing of the epoch before may be taken for this one's: versions carry the generation.
                self._generations[job.number] = self._next_generation
                self._next_generation += 1
            if before is None or before[2] != state[2]:
                for index, port in ports.items():
                    way = self._paths[job.workers[index]]
                    way.port = _port(port)
                    self._object.set("workers", job.number * MAX_WORKERS + index, way)
            entry_ = _Job(
                num_workers=job.num_workers,
                epoch=epoch,
                joined=joined,
                first_slot=job.first_slot,
                num_slots=job.num_slots,
                generation=self._generations[job.number],
                doublings=job.form.rounding(job.num_workers),
            )
            self._object.set("jobs", job.number, entry_)
            self._published[job.number] = state

    def _parent(self, job: Job) -> _Worker:
        """The way to the aggregator above; one that leads nowhere at the root."""
        if job.parent is None:
            return _Worker()
        way = self._way(job.parent)
        way.port = _port(job.parent_port)
        return way

    def _way(self, host: str) -> _Worker:
        """By which port, and to which neighbour, the switch reaches a host. Raises JobError when it does not."""
        with self._switch():
            way = _ip("route", "get", host)
            device = str(way[0]["dev"])
            neighbour = str(way[0].get("gateway", host))
            known = [each for each in _ip("neighbour", "show", neighbour, "dev", device) if "lladdr" in each]
            own = _ip("link", "show", "dev", device)[0]["address"]
            index = socket.if_nametoindex(device)
        if not known:
            raise JobError(f"workers: the switch knows no hardware address of {neighbour} on {device}; ping it first")
        return _Worker(
            address=(ctypes.c_uint8 * 4)(*socket.inet_aton(host)),
            source_mac=_mac(own),
            mac=_mac(known[0]["lladdr"]),
            interface=index,
        )


class _Publishing:
    """The control core; whatever it received is published before it answers."""

    def __init__(self, core: Aggregator, publish: Callable[[], None]) -> None:
        self._core = core
        self._publish = publish

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        self._core.receive(datagrams, now_s)
        self._publish()

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        return self._core.transmit(now_s)

    def deadline_s(self) -> float | None:
        return self._core.deadline_s()

    def expire(self, now_s: float) -> None:
        self._core.expire(now_s)


class ProgramTrial:
    """The program run on frames that a test makes (BPF_PROG_TEST_RUN), without a network: one job, all of whose workers
    have joined its epoch 0 from TRIAL_PORT. The kernel takes frames of up to some 3500 bytes, so chunks of at most 512
    elements."""

    def __init__(self, job: Job) -> None:
        """Raises UnsupportedError as :class:`EbpfDataPlane`."""
        self._job = job
        self._num_epochs = 0
        object_file = _built(job.num_elements, job.payload)
        self._object = BpfObject(object_file, max_entries={"versions": 2 * (job.first_slot + job.num_slots)})
        for index, host in enumerate(job.workers):
            self._object.set("worker_index", _who(job.number, host), index)
            trial_worker = _Worker(port=_port(TRIAL_PORT))
            self._object.set("workers", job.number * MAX_WORKERS + index, trial_worker)
        self.begin_epoch(0, job.everybody)

    def begin_epoch(self, epoch: int, joined: int) -> None:
        """Another epoch; `joined` is the bitmap of its members."""
        job = self._job
        self._num_epochs += 1
        entry_ = _Job(
            num_workers=job.num_workers,
            epoch=epoch,
            joined=joined,
            first_slot=job.first_slot,
            num_slots=job.num_slots,
            generation=self._num_epochs,
            doublings=job.form.rounding(job.num_workers),
        )
        self._object.set("jobs", job.number, entry_)

    def send(
        self, host: str, datagram: bytes, port: int = TRIAL_PORT, *, segment_bytes: int = 0
    ) -> tuple[bool, bytes, int]:
        """One datagram from a host, or a message of several of `segment_bytes` each that nothing has cut up: whether
        the program kept it, what it then was, and the nanoseconds it took."""
        udp = struct.pack(">HHHH", port, PORTS.start, 8 + len(datagram), 0)
        length = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(datagram), 0, 0, 64, socket.IPPROTO_UDP, 0)
        ip = length + socket.inet_aton(host) + socket.inet_aton("192.0.2.1")
        frame = bytes(12) + struct.pack(">H", 0x0800) + ip + udp + datagram
        verdict, after, duration_ns = self._object.run(PROGRAM, frame, segment_bytes)
        return verdict == _SHOT, after[ETHERNET_IP_UDP_BYTES:], duration_ns

    def counters(self) -> Counters:
        """What the program has counted."""
        found = Counters()
        _add_kernel_counters(found, self._object)
        return found

    def in_flight(self) -> int:
        """Contributions to chunks whose result is not known."""
        return _in_flight(self._object, _slots(self._job), self._job.num_elements, self._job.payload)

    def gaps(self) -> tuple[int, ...]:
        """How many chunks waited how long for their last contribution, as `Stragglers` has them."""
        return _gaps(self._object.get_per_cpu("job_counts", self._job.number, _JobCounters))

    def begin_at(self, slot: int, first_ns: int) -> None:
        """As if the first contribution to the even chunks of a slot had come then."""
        version = self._object.get("versions", 2 * slot, _version_kind(self._job.num_elements, self._job.payload))
        version.first_ns = first_ns
        self._object.set("versions", 2 * slot, version)

    def close(self) -> None:
        """Give the program and its maps back."""
        self._object.close()


def _add_kernel_counters(counters: Counters, program: BpfObject) -> None:
    known = {each.name for each in fields(Counters)}
    for counted in program.get_per_cpu("counts", 0, _Counters):
        for name in _COUNTERS:
            if name in known:
                setattr(counters, name, getattr(counters, name) + getattr(counted, name))


def _listed_entries(faults: Faults) -> dict[tuple[int, int, int, int], int]:
    """What the program's map `listed` is to hold, by direction, worker, chunk and occurrence: the number of the fault,
    and at occurrence 0 how many datagrams of that chunk have come. Raises UnsupportedError for more than has room."""
    entries: dict[tuple[int, int, int, int], int] = {}
    for each in faults.listed:
        direction = _DIRECTIONS.index(each.direction)
        entries[direction, each.worker, each.chunk, 0] = 0
        entries[direction, each.worker, each.chunk, each.occurrence] = _FAULT_NUMBERS[each.fault]
    if len(entries) > _MAX_LISTED:
        raise UnsupportedError(
            f"listed: in the kernel there is room for {_MAX_LISTED} entries, one for each fault and one for each chunk "
            f"of a worker and direction that has any, not for {len(entries)}; reference takes more"
        )
    return entries


def _gaps(per_cpu: Sequence[Any]) -> tuple[int, ...]:
    """Of _JobCounters: chunks by how long they waited for their last contribution."""
    return tuple(sum(each.gaps[bucket] for each in per_cpu) for bucket in range(NUM_GAPS))


def _in_flight(program: BpfObject, slots: Iterable[int], num_elements: int, payload: PayloadName) -> int:
    halves = _versions(program, slots, num_elements, payload)
    return sum(int(half.seen).bit_count() for _, half in halves if not half.done)


def _versions(
    program: BpfObject, slots: Iterable[int], num_elements: int, payload: PayloadName
) -> Iterator[tuple[int, Any]]:
    """Each slot's number with each of its halves."""
    kind = _version_kind(num_elements, payload)
    return ((slot, program.get("versions", 2 * slot + half, kind)) for slot in slots for half in range(2))


def _slots(job: Job) -> range:
    return range(job.first_slot, job.first_slot + job.num_slots)


def _version_kind(num_elements: int, payload: PayloadName) -> type[ctypes.Structure]:
    """struct version, whose length depends on the values in a chunk: sums of 32-bit integers have 64."""
    lanes = PAYLOADS[payload].lanes
    integer = ctypes.c_int64 if lanes == 1 else ctypes.c_int32
    head = ("lock", "generation", "chunk", "seen", "done", "saturated", "exponent", "upward")

    class Version(ctypes.Structure):
        """struct version of aggregate.bpf.c."""

        _fields_ = (
            *((name, ctypes.c_uint32) for name in head),
            ("first_ns", ctypes.c_uint64),
            ("what", ctypes.c_uint32),
            ("unused", ctypes.c_uint32),
            ("sums", integer * (num_elements * lanes)),
        )

    return Version


def _built(num_elements: int, payload: PayloadName) -> Path:
    """The program's object file. Raises UnsupportedError where it cannot be built."""
    layouts = (
        layout_of("job", _Job),
        layout_of("worker", _Worker),
        layout_of("counters", _Counters),
        layout_of("faults", _FaultRates),
        layout_of("draw", _Draw),
        layout_of("listed_key", _ListedKey),
        layout_of("job_counters", _JobCounters),
        layout_of("version", _version_kind(num_elements, payload)),
    )
    return build(SOURCE, "bpf", _defines(num_elements, payload), layouts=layouts)


def _defines(num_elements: int, payload: PayloadName) -> tuple[str, ...]:
    """Raises UnsupportedError for chunks of more integers than the verifier walks through."""
    lanes = PAYLOADS[payload].lanes
    if num_elements * lanes > MAX_KERNEL_VALUES:
        raise UnsupportedError(
            f"num_elements: in the kernel a chunk has at most {MAX_KERNEL_VALUES // lanes} elements of {payload}, not "
            f"{num_elements}; reference takes more"
        )
    return f"NUM_ELEMENTS={num_elements}", f"LANES={lanes}"


@register
class Ebpf(DataPlaneKind):
    """A tc program in the switch's kernel."""

    in_kernel: ClassVar[bool] = True
    max_values: ClassVar[int | None] = MAX_KERNEL_VALUES
    needs: ClassVar[str] = "apt-get install --no-install-recommends clang libbpf-dev, and root"

    @classmethod
    def problem(cls) -> str:
        """Of building and loading the smallest program."""
        try:
            BpfObject(_built(32, "int32"), max_entries={"versions": 2}).close()
        except UnsupportedError as error:
            return str(error)
        return ""

    @classmethod
    def open(cls, local: Address, *, generation: int, epochs: Epochs | None, program: Program | None) -> DataPlane:
        """See DataPlaneKind."""
        assert program is not None, "a data plane in a switch's kernel needs the configuration of its program"
        return EbpfDataPlane(
            local,
            generation=generation,
            epochs=epochs,
            num_elements=program.num_elements,
            payload=program.payload,
            num_slots=program.num_slots,
            switch=program.switch,
            interface=program.interface,
        )


def _who(job: int, host: str) -> ctypes.c_uint64:
    return ctypes.c_uint64(job << 32 | int.from_bytes(socket.inet_aton(host), "little"))


def _port(number: int) -> Any:
    return (ctypes.c_uint8 * 2)(*number.to_bytes(2, "big"))


def _mac(text: str) -> Any:
    return (ctypes.c_uint8 * 6)(*bytes.fromhex(text.replace(":", "")))


def _ip(*words: str) -> list[dict[str, Any]]:
    done = subprocess.run(["ip", "-j", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JobError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return found


assert MAX_JOBS == 16, "aggregate.bpf.c has MAX_JOBS of its own"

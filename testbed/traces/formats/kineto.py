"""What torch's profiler writes (Kineto's JSON, `profile(...).export_chrome_trace`), a directory with a file for a rank.

Which operations there are is said by events' arguments, where the profiler ran with `record_shapes=True`: `Collective
name`, `In msg nelems`, `Out msg nelems`, `dtype`, `Process Group Ranks`, splits, roots and peers of NCCL's
`record_param_comms` and of our backend's `testbed.param_comms`. gloo writes none; there the operators `c10d::...` say
tensors' shapes and types, and nothing of the group: such a trace is read where there is only one, and without gather
and scatter, whose sizes not every rank writes.

Computing is what operators took on the threads that communicate, on the process's first one and on those that evaluate
gradients (no loader of data is among them), without the waiting between them; on a GPU, what kernels took that
communicate nothing. An operation waits for the computing before it, and computing that began after an operation had
ended is taken to have waited for it. On a GPU both are by the device's times, NCCL's kernels standing for operations:
the processor that launches kernels is ahead of it. Recorded are the steps that the profiler was on for: an iteration
of the graph is all of them.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice, pairwise
from math import prod
from typing import Any, Final, NamedTuple, NoReturn

from testbed.traces.formats.base import TRACE_FORMATS, File, Source, TraceError, TraceFormat
from testbed.traces.graph import Collective, Compute, Exchange, Graph, Node, Receive, Send
from transports.collectives.base import Operation

_OF_PROCESS_GROUP: Final = " of process group "
_BEGINNING_BYTES: Final = 4096
TORCH_TYPES: Final = {
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "bool": "Bool",
}
"""What `dtype` says of each element type."""
COLLECTIVE_NAMES: Final[Mapping[Operation, str]] = {
    "all_reduce": "allreduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all": "all_to_allv",
    "barrier": "barrier",
}
"""What `Collective name` says of an operation of one tensor."""
_TYPES: Final = {name: element_type for element_type, name in TORCH_TYPES.items()} | {
    # as operators' arguments have them
    "unsigned char": "uint8",
    "signed char": "int8",
    "short int": "int16",
    "int": "int32",
    "long int": "int64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
    "bool": "bool",
}
_OPERATIONS: Final[Mapping[str, Operation]] = {name: operation for operation, name in COLLECTIVE_NAMES.items()} | {
    "allreduce_coalesced": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "all_gather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all",
}


class _Operator(NamedTuple):
    """How an operator of torch's appears in gloo's trace."""

    collective: str
    title: str
    """Of the event that spans it, behind `gloo:`."""
    root: int | None = None
    """The place of the root among its arguments."""
    peer: int | None = None
    """And of a message's peer; its tag comes next."""
    splits: int | None = None
    """And of what is sent to each."""
    in_parts: bool = False
    """Whether what is read is one part of the whole."""


_GLOO_OPERATORS: Final[Mapping[str, _Operator]] = {
    "c10d::allreduce_": _Operator("allreduce", "all_reduce"),
    "c10d::allreduce_coalesced_": _Operator("allreduce_coalesced", "all_reduce"),
    "c10d::reduce_": _Operator("reduce", "reduce", root=3),
    "c10d::broadcast_": _Operator("broadcast", "broadcast", root=2),
    "c10d::allgather_": _Operator("all_gather", "all_gather", in_parts=True),
    "c10d::_allgather_base_": _Operator("_allgather_base", "all_gather", in_parts=True),
    "c10d::_reduce_scatter_base_": _Operator("_reduce_scatter_base", "all_reduce"),
    "c10d::alltoall_base_": _Operator("all_to_allv", "all_to_all", splits=4),
    "c10d::barrier": _Operator("barrier", "barrier"),
    "c10d::send": _Operator("send", "send", peer=2),
    "c10d::recv_": _Operator("recv", "recv", peer=2),
}
_NO_EXCHANGE: Final = frozenset(("init", "wait"))
"""What NCCL notes under `Collective name` that moves nothing."""
_NCCL_KERNELS: Final = ("ncclDevKernel", "ncclKernel")
"""What their names begin with since NCCL 2.19, and before."""
_COMMUNICATING: Final = ("c10d::", "gloo:", "testbed:", "testbed.", "nccl:", "record_param_comms", *_NCCL_KERNELS)
_ROOTED: Final = frozenset(("broadcast", "reduce", "gather", "scatter"))


@TRACE_FORMATS.register
class Kineto(TraceFormat):
    """torch's profiler; the format has no options."""

    def takes(self, source: Source) -> bool:
        """It says the version of its schema at its beginning."""
        return b'"schemaVersion"' in source.files[0].data[:_BEGINNING_BYTES]

    def load(self, source: Source) -> Graph:
        """See :class:`TraceFormat`."""
        by_rank = _by_rank(source)
        readers = [_RankReader(file, data, len(by_rank)) for file, data in by_rank]
        for reader in readers:
            reader.read()
        names = _group_names([reader.groups for reader in readers])
        return Graph(
            ranks=tuple(
                tuple(
                    node._replace(group=names[node.group]) if isinstance(node, Collective) else node
                    for node in reader.nodes
                )
                for reader in readers
            ),
            groups={names[key]: members for reader in readers for key, members in reader.groups.items()},
        )


def _group_names(by_rank: Sequence[Mapping[str, tuple[int, ...]]]) -> dict[str, str]:
    """What groups are called, by their keys (see :meth:`_RankReader._group`): by their members, and where all of these
    name several process groups of theirs, by that name, too, since each has an order of its own."""
    found: dict[str, str] = {}
    for key, members in {key: members for groups in by_rank for key, members in groups.items()}.items():
        title, _, process_group = key.partition(_OF_PROCESS_GROUP)
        known = [{each for each, ranks in by_rank[member].items() if ranks == members} for member in members]
        several = len(known[0]) > 1 and all(each == known[0] for each in known)
        found[key] = f"{title} ({process_group})" if several else title
    return found


def _by_rank(source: Source) -> list[tuple[File, dict[str, Any]]]:
    """Each file's contents, by rank. Raises TraceError where one is missing."""
    found: dict[int, tuple[File, dict[str, Any]]] = {}
    for file in source.files:
        data = _parsed(file)
        about = data.get("distributedInfo")
        if (
            not isinstance(about, dict)
            or type(about.get("rank")) is not int
            or type(about.get("world_size")) is not int
        ):
            file.fail("it does not say its rank (distributedInfo): was there a process group when it was recorded?")
        if about["rank"] in found:
            file.fail(f"{found[about['rank']][0].path.name} is of rank {about['rank']} as well")
        if about["world_size"] != len(source.files):
            file.fail(
                f"it is one of {about['world_size']} ranks, and there are {len(source.files)} files; put those of all "
                "ranks, and nothing else, into one directory"
            )
        found[about["rank"]] = file, data
    if sorted(found) != list(range(len(found))):
        raise TraceError(f"{source.path}: ranks are {sorted(found)[:8]}; one file for each is expected, from 0 on")
    return [found[rank] for rank in range(len(found))]


def _parsed(file: File) -> dict[str, Any]:
    try:
        data = json.loads(file.data)
    except (ValueError, RecursionError) as error:
        file.fail(f"no whole JSON: {error}")
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        file.fail("it has no list of traceEvents")
    return data


class _Event(NamedTuple):
    """A span of the trace; moments in microseconds."""

    number: int
    """Among the file's events."""
    name: str
    kind: str
    thread: tuple[str, str]
    """Of which process, and which thread."""
    begin_us: float
    end_us: float
    arguments: Mapping[str, Any]

    @property
    def on_first_thread(self) -> bool:
        """Whether on the one that Linux gives the process's own number."""
        process, thread = self.thread
        return process == thread


class _Begun(NamedTuple):
    """An operation, and when it went on."""

    event: _Event
    exchange: Exchange
    begin_us: float
    end_us: float


class _RankReader:
    """One rank's file."""

    def __init__(self, file: File, data: Mapping[str, Any], num_ranks: int) -> None:
        self._file = file
        self._num_ranks = num_ranks
        self._about: Mapping[str, Any] = data["distributedInfo"]
        self._events = sorted(self._spans(data["traceEvents"]), key=lambda event: (event.begin_us, -event.end_us))
        self._of_gloo = [event for event in self._events if event.name.startswith("gloo:")]
        """Events that last as long as an operation, and that no operation has been found for yet."""
        self._ours: defaultdict[tuple[str, str], deque[_Event]] = defaultdict(deque)
        """Likewise, by thread."""
        self._kernels: defaultdict[str, deque[_Event]] = defaultdict(deque)
        """Likewise, NCCL's, by External id."""
        for event in self._events:
            if event.name.startswith("testbed:"):
                self._ours[event.thread].append(event)
            elif event.name.startswith(_NCCL_KERNELS):
                self._kernels[str(event.arguments.get("External id"))].append(event)
        self.groups: dict[str, tuple[int, ...]] = {}
        self.nodes: list[Node] = []

    def read(self) -> None:
        """Fills `nodes` and `groups`. Raises TraceError, which names the event."""
        described = [event for event in self._events if _is_described(event)]
        exchanges: list[_Begun] = []
        for event in described or [event for event in self._events if event.name.startswith("c10d::")]:
            if described:
                exchanges.append(_Begun(event, self._described(event), *self._went_on_us(event)))
            else:
                span = self._gloo_span(event)
                end_us = max(event.end_us, span.end_us)
                exchanges.append(_Begun(event, self._gloo(event, span), event.begin_us, end_us))
        if not exchanges:
            self._file.fail("no event says what is exchanged; record with record_shapes=True, and with a process group")
        self._build(sorted(exchanges, key=lambda each: each.begin_us))

    def _spans(self, events: Sequence[object]) -> Iterator[_Event]:
        for number, event in enumerate(events):
            if not isinstance(event, dict):
                self._fail(number, "it is no mapping")
            if event.get("ph") != "X":
                continue
            begin_us: Any = event.get("ts")
            length_us, arguments = event.get("dur", 0.0), event.get("args", {})
            for what, value in (("ts", begin_us), ("dur", length_us)):
                if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
                    self._fail(number, f"{what} is {repr(value)[:40]}, which is not a number")
            if length_us < 0:
                self._fail(number, f"dur is {length_us:g}; it is at least 0")
            yield _Event(
                number=number,
                name=str(event.get("name", "")),
                kind=str(event.get("cat", "")),
                thread=(str(event.get("pid")), str(event.get("tid"))),
                begin_us=begin_us,
                end_us=begin_us + length_us,
                arguments=arguments if isinstance(arguments, dict) else {},
            )

    def _fail(self, number: int, problem: str) -> NoReturn:
        self._file.fail(f"event {number}: {problem}")

    # Which operation it is.

    def _described(self, event: _Event) -> Exchange:
        """Of an event whose arguments say it."""
        reader = _Arguments(self._file, event)
        name = reader.word("Collective name")
        if name in ("send", "recv"):
            element_type = self._type(event, reader.word("dtype"))
            tag = reader.count("Tag") if "Tag" in event.arguments else 0
            if name == "send":
                return Send(reader.count("Dst Rank"), reader.count("In msg nelems"), element_type, tag)
            return Receive(reader.count("Src Rank"), reader.count("Out msg nelems"), element_type, tag)
        operation = self._operation(event, name)
        members = self._members(event, reader)
        process_group = str(event.arguments.get("Process Group Name", ""))
        if operation == "barrier":
            return Collective("barrier", 0, "uint8", self._group(members, process_group))
        num_given, num_made = reader.count("In msg nelems"), reader.count("Out msg nelems")
        count, few = max(num_given, num_made), min(num_given, num_made)
        if operation in ("all_gather", "reduce_scatter") and count != len(members) * few:
            self._fail(
                event.number,
                f"it reads {num_given} elements and writes {num_made} among {len(members)} ranks: parts that are not "
                "alike cannot be taken apart",
            )
        root = self._root(event, reader, members) if operation in _ROOTED else None
        splits: Sequence[int] = ()
        if operation in ("gather", "scatter"):
            count = len(members) * min(num_given or count, num_made or count)
        elif operation == "all_to_all":
            count, splits = num_given, self._splits(reader, members)
            if not splits and num_given != num_made:
                self._fail(event.number, f"it reads {num_given} elements and writes {num_made}, and says no splits")
        element_type = self._type(event, reader.word("dtype"))
        return self._collective(event, operation, count, element_type, members, root, splits, process_group)

    def _root(self, event: _Event, reader: "_Arguments", members: Sequence[int]) -> int:
        """`Root Rank`, which our backend writes. torch has none: what it calls `Rank` of such an operation is the
        root's place in the group (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, torch/csrc/profiler/util.cpp)."""
        if "Root Rank" in event.arguments:
            return reader.count("Root Rank")
        ranks, place = self._listed_ranks(event, reader) or members, reader.count("Rank")
        if place >= len(ranks):
            self._fail(event.number, f"its root has place {place} in a group of {len(ranks)}")
        return ranks[place]

    @staticmethod
    def _splits(reader: "_Arguments", members: Sequence[int]) -> Sequence[int]:
        """What goes to each member, where it is said: in rows, or as a tensor for each."""
        splits = reader.numbers("In split size")
        shapes = reader.event.arguments.get("Input Dims")
        if not splits and isinstance(shapes, list) and len(shapes) == len(members) and all(map(_is_shape, shapes)):
            return list(map(prod, shapes))
        return splits

    def _collective(
        self,
        event: _Event,
        operation: Operation,
        count: int,
        element_type: str,
        members: tuple[int, ...],
        root: int | None,
        splits: Sequence[int],
        process_group: str = "",
    ) -> Collective:
        if splits and sum(splits) != count:
            if not sum(splits) or count % sum(splits):
                self._fail(event.number, f"splits {list(splits)[:8]} are not of {count} elements")
            width = count // sum(splits)  # splits are of rows
            splits = [split * width for split in splits]
        if splits:
            count = sum(splits)
        return Collective(
            operation, count, element_type, self._group(members, process_group), root, tuple(splits) or None
        )

    def _gloo(self, event: _Event, span: _Event) -> Exchange:
        """Of an operator and of the event that spans it, which says the shape and the type of what is read."""
        operator, everybody = _GLOO_OPERATORS[event.name], tuple(range(self._num_ranks))
        if operator.collective == "barrier":
            return Collective("barrier", 0, "uint8", self._group(everybody))
        given, own = _Arguments(self._file, event), _Arguments(self._file, span)
        shapes, types = own.shapes(), own.types()
        count = sum(map(prod, shapes))
        if operator.peer is not None:
            message: type[Send | Receive] = Send if operator.collective == "send" else Receive
            tag = given.fixed(operator.peer + 1)
            return message(given.fixed(operator.peer), count, self._type(span, types[0]), tag)
        if operator.in_parts:
            count *= self._num_ranks
        root = None if operator.root is None else given.fixed(operator.root)
        splits = () if operator.splits is None else given.list_in(given.fixed_text(operator.splits), "splits")
        operation = self._operation(event, operator.collective)
        return self._collective(event, operation, count, self._type(span, types[0]), everybody, root, splits)

    def _gloo_span(self, event: _Event) -> _Event:
        """What spans an operator: the first such event after it that no other one has, of the same shapes if it says
        any. Raises TraceError."""
        if self._about.get("pg_count", 1) != 1:
            self._fail(
                event.number,
                f"gloo does not write of which of {self._about.get('pg_count')} groups an operation is; record with "
                "another backend",
            )
        operator = _GLOO_OPERATORS.get(event.name)
        if operator is None:
            self._fail(
                event.number, f"operator {event.name!r} is not known; allowed: {', '.join(sorted(_GLOO_OPERATORS))}"
            )
        shapes = event.arguments.get("Input Dims")
        for place, span in enumerate(self._of_gloo):
            if span.name != f"gloo:{operator.title}" or span.begin_us < event.begin_us:
                continue
            own = span.arguments.get("Input Dims")
            if operator.collective == "barrier" or (own and isinstance(shapes, list) and _says(shapes, own)):
                return self._of_gloo.pop(place)
        raise TraceError(
            f"{self._file.path}: event {event.number}: {event.name} has no event gloo:{operator.title} of its shapes; "
            "record with record_shapes=True, and wait for operations before the profiler ends"
        )

    def _operation(self, event: _Event, name: str) -> Operation:
        if name not in _OPERATIONS:
            known = ", ".join(sorted({*_OPERATIONS, "send", "recv"}))
            self._fail(event.number, f"operation {name!r} is not known; allowed: {known}")
        return _OPERATIONS[name]

    def _type(self, event: _Event, name: str) -> str:
        if name not in _TYPES:
            self._fail(event.number, f"elements are of type {name!r}, which is not known")
        return _TYPES[name]

    def _members(self, event: _Event, reader: "_Arguments") -> tuple[int, ...]:
        """The ranks of the operation's group."""
        size, ranks = reader.count("Group size"), self._listed_ranks(event, reader)
        if not ranks and size == self._num_ranks:
            return tuple(range(size))
        if ranks is None:
            self._fail(
                event.number,
                f"torch has cut off the list of its group's {size} ranks (Process Group Ranks) after the first 30; of "
                "such groups only that of all ranks can be read",
            )
        if len(ranks) != size:
            self._fail(event.number, f"Process Group Ranks are {list(ranks)[:8]}, and Group size is {size}")
        return tuple(sorted(ranks))

    @staticmethod
    def _listed_ranks(event: _Event, reader: "_Arguments") -> tuple[int, ...] | None:
        """Those of the group in its own order; None where torch has cut off the list (torch/csrc/profiler/util.cpp,
        format_list)."""
        if ", ..." in str(event.arguments.get("Process Group Ranks")):
            return None
        return reader.numbers("Process Group Ranks")

    def _group(self, members: tuple[int, ...], process_group: str = "") -> str:
        """Its key: its members, and torch's name of the process group, where it is known."""
        title = "world" if members == tuple(range(self._num_ranks)) else f"ranks {','.join(map(str, members))}"
        key = f"{title}{_OF_PROCESS_GROUP}{process_group}"
        self.groups[key] = members
        return key

    # When what happened.

    def _went_on_us(self, exchange: _Event) -> tuple[float, float]:
        """From when until when an operation went on: NCCL's kernel of the same External id did; without one, from when
        the operation was started until the event that spans it ends (`testbed:...`), or else its own. Operations are
        given in the order in which they were started."""
        identity = exchange.arguments.get("External id")
        if identity is not None and (kernels := self._kernels.get(str(identity))):
            kernel = kernels.popleft()
            return kernel.begin_us, kernel.end_us
        ours = self._ours[exchange.thread]
        while ours and ours[0].end_us < exchange.begin_us:
            ours.popleft()
        spanned = bool(ours) and ours[0].begin_us <= exchange.begin_us
        return exchange.begin_us, max(exchange.end_us, ours.popleft().end_us) if spanned else exchange.end_us

    def _build(self, exchanges: Sequence[_Begun]) -> None:
        """Computing and operations in the order in which they began."""
        pieces = _Pieces(self.nodes)
        computing = _between(self._computing({each.event.thread for each in exchanges}), exchanges)
        position = 0
        for each in exchanges:
            while position < len(computing) and computing[position].begin_us < each.begin_us:
                pieces.compute(computing[position])
                position += 1
            pieces.exchange(each)
        for event in computing[position:]:
            pieces.compute(event)
        pieces.close()

    def _computing(self, communicating: AbstractSet[tuple[str, str]]) -> list[_Event]:
        """What computes, without what lies in or under others: kernels, else operators, given the threads that start
        operations."""
        threads = {event.thread for event in self._events if event.name.startswith("autograd::")} | communicating
        own = [event for event in self._events if not self._communicates(event)]
        computing = [event for event in own if event.kind == "kernel"] or [
            event for event in own if event.kind == "cpu_op" and (event.thread in threads or event.on_first_thread)
        ]
        found: list[_Event] = []
        until_us = float("-inf")
        for event in computing:
            if event.end_us > until_us:
                found.append(event._replace(begin_us=max(event.begin_us, until_us)))
                until_us = event.end_us
        return found

    @staticmethod
    def _communicates(event: _Event) -> bool:
        return event.name.startswith(_COMMUNICATING)


def _between(computing: Sequence[_Event], exchanges: Sequence[_Begun]) -> list[_Event]:
    """What computes, cut where an operation went on, which does not wait for what comes after, and without what its
    thread spent in starting one or in waiting for it: an operator may contain an exchange."""
    begins_us = sorted({each.begin_us for each in exchanges})
    calls: dict[tuple[str, str], list[_Event]] = defaultdict(list)
    for call in sorted((each.event for each in exchanges), key=lambda event: event.end_us):
        calls[call.thread].append(call)
    found: list[_Event] = []
    for event in computing:
        begin_us = event.begin_us
        spans: list[tuple[float, float]] = []
        own = calls[event.thread]
        for call in islice(own, bisect_right(own, begin_us, key=lambda call: call.end_us), None):
            if call.begin_us >= event.end_us:
                break
            spans.append((begin_us, call.begin_us))
            begin_us = call.end_us
        spans.append((begin_us, event.end_us))
        for start_us, end_us in spans:
            inside = begins_us[bisect_right(begins_us, start_us) : bisect_left(begins_us, end_us)]
            found += [
                event._replace(begin_us=first_us, end_us=second_us)
                for first_us, second_us in pairwise([start_us, *inside, end_us])
                if first_us < second_us
            ]
    return sorted(found, key=lambda event: event.begin_us)


class _Pieces:
    """A rank's nodes as they come."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._last: int | None = None
        """Computing before what comes."""
        self._under_way: dict[int, _Begun] = {}
        """Exchanges that nothing has waited for which has ended itself."""
        self._after: tuple[int, ...] = ()
        self._name = ""
        self._duration_us = 0.0

    def compute(self, event: _Event) -> None:
        """An operator, or a kernel, began."""
        ended = self._ended(event.begin_us)
        if ended:
            self._flush()
            self._after = tuple(ended)
            for number in ended:
                del self._under_way[number]
        self._name = self._name or event.name
        self._duration_us += event.end_us - event.begin_us

    def exchange(self, begun: _Begun) -> None:
        """An operation was started."""
        self._flush()
        before = () if self._last is None else (self._last,)
        name = str(begun.event.arguments.get("Collective name", begun.event.name))
        after = (*before, *self._ended(begun.begin_us))
        self._nodes.append(begun.exchange._replace(name=name, after=after))
        self._under_way[len(self._nodes) - 1] = begun

    def _ended(self, moment_us: float) -> list[int]:
        """The exchanges that have ended by then, without those that another of them has waited for: whoever waits for
        that one waits for them, now and later."""
        ended = [number for number, begun in self._under_way.items() if begun.end_us <= moment_us]
        latest = max(ended, key=lambda number: (self._under_way[number].begin_us, number), default=0)
        for number in ended:
            if number != latest and self._under_way[number].end_us <= self._under_way[latest].begin_us:
                del self._under_way[number]
        return [number for number in ended if number in self._under_way]

    def close(self) -> None:
        """The last computing ends."""
        self._flush()

    def _flush(self) -> None:
        if not self._duration_us and not self._after:
            return
        before = () if self._last is None else (self._last,)
        self._nodes.append(Compute(self._duration_us * 1e-6, self._name, (*before, *self._after)))
        self._last = len(self._nodes) - 1
        self._name, self._duration_us, self._after = "", 0.0, ()


class _Arguments(NamedTuple):
    """Of one event."""

    file: File
    event: _Event

    def fail(self, problem: str) -> NoReturn:
        self.file.fail(f"event {self.event.number} ({self.event.name}): {problem}")

    def word(self, name: str) -> str:
        value = self.event.arguments.get(name)
        if not isinstance(value, str):
            self.fail(f"{name} is {repr(value)[:40]}, which is not a word")
        return value

    def count(self, name: str) -> int:
        value = self.event.arguments.get(name)
        if type(value) is not int or value < 0:
            self.fail(f"{name} is {repr(value)[:40]}, which is not a whole number, at least 0")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """Of a list in text, such as `[0, 1]`. Empty where it is missing or empty."""
        return self.list_in(self.event.arguments.get(name, "[]"), name)

    def list_in(self, text: object, name: str) -> tuple[int, ...]:
        if not isinstance(text, str) or not re.fullmatch(r"\[(\d{1,12}(, ?\d{1,12})*)?\]", text):
            self.fail(f"{name} is {repr(text)[:40]}, which is not a list of numbers")
        return tuple(map(int, re.findall(r"\d+", text)))

    def shapes(self) -> list[list[int]]:
        """Of the tensors among the arguments, in their order."""
        found = self.event.arguments.get("Input Dims")
        if not isinstance(found, list) or not found or not all(_is_shape(shape) for shape in found):
            self.fail("Input Dims are no shapes; record with record_shapes=True")
        return found

    def types(self) -> list[str]:
        """Of the arguments."""
        found = self.event.arguments.get("Input type")
        if not isinstance(found, list) or not found or not isinstance(found[0], str):
            self.fail("Input type is missing; record with record_shapes=True")
        return found

    def fixed_text(self, place: int) -> str:
        """The argument there, which is no tensor."""
        found = self.event.arguments.get("Concrete Inputs")
        if not isinstance(found, list) or place >= len(found) or not isinstance(found[place], str):
            self.fail(f"Concrete Inputs have no argument {place}; record with record_shapes=True")
        return str(found[place])

    def fixed(self, place: int) -> int:
        """The same, a number."""
        text = self.fixed_text(place)
        if not re.fullmatch(r"\d{1,12}", text):
            self.fail(f"argument {place} is {text[:40]!r}, which is not a whole number, at least 0")
        return int(text)


def _is_described(event: _Event) -> bool:
    """An event of an operation; kernels of NCCL repeat its arguments."""
    name = event.arguments.get("Collective name")
    moves = not isinstance(name, str) or name not in _NO_EXCHANGE
    return name is not None and event.kind == "cpu_op" and moves


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(type(side) is int and 0 <= side < 2**40 for side in value)


def _says(arguments: list[Any], shapes: Any) -> bool:
    """Whether an operator's arguments have tensors of these shapes: by themselves, or as one list of them."""
    return isinstance(shapes, list) and (shapes in arguments or all(shape in arguments for shape in shapes))

"""Execution traces of MLCommons Chakra (Sridharan et al., "Chakra", 2023, arXiv:2305.14516), as ASTRA-sim reads them.

A file for each rank, `NAME.RANK.et`, and where ranks have groups `NAME.groups.json` beside them, which says the members
of each (ASTRA-sim's communicator groups): `{"1": [0, 1, 2, 3]}`; without it all collectives are of all ranks. The
schema is `testbed/traces/protobuf/chakra.proto`. Attributes of nodes that are read and written:

    is_cpu_op     false; computing on a processor beside computing on another device, both with a duration, is refused,
                  since both go on at once and a rank has one device here
    comm_type     of a collective (enum CollectiveCommType)
    comm_size     bytes of this rank's input, as ASTRA-sim counts: of an all-gather its part, of a reduce-scatter the
                  whole; of scatter and gather the root's larger buffer, as there is one size for all
    pg_name       the group
    involved_dim  without a group (read alone): all of a network's dimensions; fewer are refused, since the network is
                  not in the trace
    comm_src, comm_dst, comm_tag  of messages

and, which other tools skip, `dtype`, `root`, `splits` (elements of an all_to_all for each member) and `duration_us`
(exactly; the node's own field has whole microseconds). Without `dtype` elements are float32 where their bytes are so
many, else uint8. Nodes of memory and storage, and computing that is given as operations and not as time, are refused:
how long they take is another machine's to say.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from testbed.errors import MissingRequirementError
from testbed.traces.formats.base import TRACE_FORMATS, File, Source, Trace, TraceError, TraceFormat
from testbed.traces.graph import ELEMENT_BYTES, IN_PARTS, Collective, Compute, Graph, Node, Receive, Send
from testbed.traces.table import LayerTable

if TYPE_CHECKING:
    from testbed.traces.protobuf import chakra_pb2

_VERSION: Final = "0.0.4"
_RANK: Final = re.compile(r"\.(\d{1,5})\.et(\.gz)?$")
_GROUPS: Final = ".groups.json"
_DEFAULT: Final = "0"
"""All ranks, where no file says otherwise."""
_WORLD: Final = "world"
_OPERATIONS: Final = {
    "all_reduce": "ALL_REDUCE",
    "reduce": "REDUCE",
    "all_gather": "ALL_GATHER",
    "gather": "GATHER",
    "scatter": "SCATTER",
    "broadcast": "BROADCAST",
    "all_to_all": "ALL_TO_ALL",
    "reduce_scatter": "REDUCE_SCATTER",
    "barrier": "BARRIER",
}
_ROOTED: Final = frozenset(("broadcast", "reduce", "gather", "scatter"))
_MAX_VARINT_BYTES: Final = 5


@TRACE_FORMATS.register
class Chakra(TraceFormat):
    """MLCommons Chakra; the format has no options."""

    def takes(self, source: Source) -> bool:
        """Files are called as ASTRA-sim wants them."""
        return any(_RANK.search(file.path.name) for file in source.files)

    def load(self, source: Source) -> Graph:
        """See :class:`TraceFormat`."""
        _require_protobuf()
        by_rank = _files(source)
        groups = _groups(source, len(by_rank))
        ranks = [_RankReader(file, len(by_rank), groups).nodes() for file in by_rank]
        used = {node.group for nodes in ranks for node in nodes if isinstance(node, Collective)}
        return Graph(ranks=tuple(ranks), groups={name: groups[name] for name in groups if name in used})

    def files(self, trace: Trace) -> Mapping[str, bytes]:
        """See :class:`TraceFormat`."""
        if isinstance(trace, LayerTable):
            raise TraceError(
                "a table of layers is no graph until it is said how ranks divide it: `testbed trace generate`"
            )
        _require_protobuf()
        # From 1: to ASTRA-sim "0" is all ranks, whatever a file says (Workload.cc, extract_comm_group).
        numbers = {name: str(number) for number, name in enumerate(trace.groups, 1)}
        found = {f".{rank}.et": _encoded(trace, nodes, numbers) for rank, nodes in enumerate(trace.ranks)}
        if trace.groups:
            groups = {numbers[name]: list(members) for name, members in trace.groups.items()}
            found[_GROUPS] = json.dumps(groups).encode()
        return found


def _require_protobuf() -> None:
    """Raises MissingRequirementError where it is not installed."""
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        raise MissingRequirementError("Chakra's traces need protobuf: pip install 'ina-testbed[control]'")


def _files(source: Source) -> list[File]:
    """Those of ranks, by rank. Raises TraceError where one is missing, or is there twice."""
    found: dict[int, File] = {}
    for file in source.files:
        if (matched := _RANK.search(file.path.name)) is not None:
            rank = int(matched.group(1))
            if rank in found:
                file.fail(f"{found[rank].path.name} is rank {rank} as well")
            found[rank] = file
        elif not file.path.name.endswith(_GROUPS):
            file.fail(f"a directory of Chakra traces holds NAME.RANK.et, and perhaps NAME{_GROUPS}")
    if missing := sorted(set(range(len(found))) - set(found)):
        raise TraceError(f"{source.path}: there are {len(found)} ranks, and none of them is rank {missing[0]}")
    return [found[rank] for rank in range(len(found))]


def _groups(source: Source, num_ranks: int) -> dict[str, tuple[int, ...]]:
    """By name; the group of all where nobody says any."""
    found: dict[str, tuple[int, ...]] = {_WORLD: tuple(range(num_ranks))}
    for file in source.files:
        if not file.path.name.endswith(_GROUPS):
            continue
        try:
            data = json.loads(file.text())
        except (ValueError, RecursionError) as error:
            file.fail(f"no whole JSON: {error}")
        if not isinstance(data, dict):
            file.fail("it is a mapping of groups to lists of ranks")
        for name, members in data.items():
            if not isinstance(members, list) or not all(type(member) is int for member in members):
                file.fail(f"group {name}: its members are a list of ranks")
            found[name] = tuple(sorted(members))
    return found


class _RankReader:
    """One rank's file."""

    def __init__(self, file: File, num_ranks: int, groups: Mapping[str, tuple[int, ...]]) -> None:
        self._file = file
        self._num_ranks = num_ranks
        self._groups = groups

    def nodes(self) -> tuple[Node, ...]:
        """Numbered in the order of the file. Raises TraceError."""
        from google.protobuf.message import DecodeError

        from testbed.traces.protobuf import chakra_pb2

        messages = _messages(self._file)
        try:
            chakra_pb2.GlobalMetadata.FromString(next(messages, b""))
            found = [chakra_pb2.Node.FromString(data) for data in messages]
        except DecodeError as error:
            self._file.fail(f"it is not a Chakra trace: {error}")
        self._require_one_device(found)
        numbers = {node.id: number for number, node in enumerate(found)}
        if len(numbers) < len(found):
            repeated = next(node.id for number, node in enumerate(found) if numbers[node.id] != number)
            self._file.fail(f"two nodes have the id {repeated}")
        return tuple(self._node(_NodeReader(self._file, node), numbers) for node in found)

    def _require_one_device(self, found: "Sequence[chakra_pb2.Node]") -> None:
        """Raises TraceError where a processor and another device compute, which go on at once."""
        from testbed.traces.protobuf import chakra_pb2 as chakra

        computing = [_NodeReader(self._file, node) for node in found if node.type == chakra.COMP_NODE]
        lasting = [reader for reader in computing if reader.duration_s()]
        by_processor = [reader for reader in lasting if reader.value("is_cpu_op") is True]
        if by_processor and any(reader.value("is_cpu_op") is False for reader in lasting):
            by_processor[0].fail(
                "a processor computes it (is_cpu_op), and another device computes others: both go on at once, and a "
                "rank has one device here; leave the computing of one of them out, or without a duration"
            )

    def _node(self, reader: "_NodeReader", numbers: Mapping[int, int]) -> Node:
        from testbed.traces.protobuf import chakra_pb2 as chakra

        node = reader.node
        after = []
        for identity in sorted({*node.ctrl_deps, *node.data_deps}):
            if identity not in numbers:
                reader.fail(f"it waits for node {identity}, which is not there")
            after.append(numbers[identity])
        named = {"name": node.name, "after": tuple(sorted(after))}
        if node.type in (chakra.COMP_NODE, chakra.METADATA_NODE):
            return Compute(reader.duration_s(), **named)  # type: ignore[arg-type]  # the keys are the fields'
        if node.type == chakra.COMM_COLL_NODE:
            return self._collective(reader)._replace(**named)  # type: ignore[arg-type]  # the same
        if node.type in (chakra.COMM_SEND_NODE, chakra.COMM_RECV_NODE):
            sends = node.type == chakra.COMM_SEND_NODE
            element_type, count = reader.elements(reader.count("comm_size"), 1)
            peer = reader.count("comm_dst" if sends else "comm_src")
            message: type[Send | Receive] = Send if sends else Receive
            made = message(peer, count, element_type, reader.count("comm_tag", 0))
            return made._replace(**named)  # type: ignore[arg-type]  # the same
        kinds = "COMP_NODE, COMM_COLL_NODE, COMM_SEND_NODE, COMM_RECV_NODE, METADATA_NODE"
        raise reader.error(f"its type is {_type_name(node.type)}; allowed: {kinds}")

    def _collective(self, reader: "_NodeReader") -> Collective:
        from testbed.traces.protobuf import chakra_pb2 as chakra

        kind = reader.count("comm_type")
        names = {int(chakra.CollectiveCommType.Value(name)): operation for operation, name in _OPERATIONS.items()}
        names[chakra.REDUCE_SCATTER_BLOCK] = "reduce_scatter"
        if kind not in names:
            reader.fail(f"comm_type {kind} is not known; allowed: 0 to {max(names)}")
        operation = names[kind]
        group = reader.word("pg_name", _WORLD) or _WORLD
        if group == _DEFAULT and group not in self._groups:
            group = _WORLD
        if group not in self._groups:
            reader.fail(f"its group (pg_name) {group!r} is not in a file NAME{_GROUPS}")
        involved = reader.value("involved_dim")
        if group == _WORLD and hasattr(involved, "values") and not all(involved.values):
            reader.fail(
                "involved_dim names some dimensions of a network that a trace does not say; write groups (pg_name, "
                f"NAME{_GROUPS})"
            )
        members = len(self._groups[group])
        if members < 2:
            reader.fail(f"its group (pg_name) {group!r} has {members} members, nobody to exchange anything with")
        size_bytes = 0 if operation == "barrier" else reader.count("comm_size")
        size_bytes *= members if operation == "all_gather" else 1
        element_type, count = reader.elements(size_bytes, members if operation in IN_PARTS else 1)
        root = reader.count("root", self._groups[group][0]) if operation in _ROOTED else None
        splits = reader.counts("splits")
        return Collective(operation, count, element_type, group, root, splits)  # type: ignore[arg-type]  # a key above


class _NodeReader(NamedTuple):
    """One node of a file."""

    file: File
    node: "chakra_pb2.Node"

    def error(self, problem: str) -> TraceError:
        """That names this node."""
        name = f" ({self.node.name})" if self.node.name else ""
        return TraceError(f"{self.file.path}: node {self.node.id}{name}: {problem}")

    def fail(self, problem: str) -> NoReturn:
        """Raises TraceError."""
        raise self.error(problem)

    def value(self, name: str) -> Any:
        """Of the attribute, whatever its type; None where there is none, or none that this package knows."""
        for attribute in self.node.attr:
            if attribute.name == name and (kind := attribute.WhichOneof("value")) is not None:
                return getattr(attribute, kind)
        return None

    def count(self, name: str, default: int | None = None) -> int:
        value = self.value(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            shown = "missing" if value is None else repr(value)[:40]
            self.fail(f"attribute {name} is {shown}; it is a whole number, at least 0")
        return value

    def counts(self, name: str) -> tuple[int, ...] | None:
        value = self.value(name)
        if value is None:
            return None
        if not hasattr(value, "values"):
            self.fail(f"attribute {name} is {value!r}; it is a list of numbers (uint64_list)")
        return tuple(value.values)

    def word(self, name: str, default: str) -> str:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fail(f"attribute {name} is {repr(value)[:40]}, which is not a word")
        return value

    def elements(self, size_bytes: int, num_parts: int) -> tuple[str, int]:
        """The type, and how many, of so many bytes in as many equal parts."""
        element_type = self.word("dtype", "float32" if size_bytes % (4 * num_parts) == 0 else "uint8")
        if element_type not in ELEMENT_BYTES:
            self.fail(f"dtype {element_type!r} is not known; allowed: {', '.join(ELEMENT_BYTES)}")
        if size_bytes % ELEMENT_BYTES[element_type]:
            self.fail(f"comm_size is {size_bytes} bytes, which no number of {element_type} has")
        return element_type, size_bytes // ELEMENT_BYTES[element_type]

    def duration_s(self) -> float:
        """Of computing."""
        exactly = self.value("duration_us")
        if isinstance(exactly, float):
            return exactly * 1e-6
        if not self.node.duration_micros and self.value("num_ops"):
            self.fail("it says num_ops and no duration_micros; how long operations take is a machine's to say")
        return self.node.duration_micros * 1e-6


def _type_name(number: int) -> str:
    from testbed.traces.protobuf import chakra_pb2

    known = {int(value): str(name) for name, value in chakra_pb2.NodeType.items()}
    return known.get(number, str(number))


def _messages(file: File) -> Iterator[bytes]:
    """The messages of a file, each without its length. Raises TraceError where the file is cut off."""
    data, at, number = file.data, 0, 0
    while at < len(data):
        length = 0
        for place in range(_MAX_VARINT_BYTES):
            if at >= len(data):
                file.fail(f"it is cut off in the length of message {number}")
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << (7 * place)
            if not byte & 0x80:
                break
        else:
            file.fail(f"it is not a Chakra trace: message {number} has no length")
        if at + length > len(data):
            file.fail(f"it is cut off: message {number} has {length} bytes, and {len(data) - at} follow")
        yield data[at : at + length]
        at, number = at + length, number + 1
    if not number:
        file.fail("it is empty")


def _delimited(data: bytes) -> bytes:
    length, prefix = len(data), bytearray()
    while length > 0x7F:
        prefix.append(0x80 | length & 0x7F)
        length >>= 7
    return bytes([*prefix, length]) + data


def _encoded(graph: Graph, nodes: tuple[Node, ...], groups: Mapping[str, str]) -> bytes:
    """One rank's file. Nodes are numbered as in the graph."""
    from testbed.traces.protobuf import chakra_pb2

    found = [_delimited(chakra_pb2.GlobalMetadata(version=_VERSION).SerializeToString(deterministic=True))]
    for number, node in enumerate(nodes):
        message = chakra_pb2.Node(id=number, name=node.name, data_deps=node.after)
        message.attr.add(name="is_cpu_op", bool_val=False)
        if isinstance(node, Compute):
            message.type = chakra_pb2.COMP_NODE
            message.duration_micros = round(node.duration_s * 1e6)
            message.attr.add(name="duration_us", double_val=node.duration_s * 1e6)
        elif isinstance(node, Collective):
            _describe_collective(message, node, graph, groups)
        else:
            sends = isinstance(node, Send)
            message.type = chakra_pb2.COMM_SEND_NODE if sends else chakra_pb2.COMM_RECV_NODE
            message.attr.add(name="comm_size", uint64_val=node.size_bytes)
            message.attr.add(name="comm_dst" if sends else "comm_src", uint32_val=node.peer)
            message.attr.add(name="comm_tag", uint32_val=node.tag)
            message.attr.add(name="dtype", string_val=node.element_type)
        found.append(_delimited(message.SerializeToString(deterministic=True)))
    return b"".join(found)


def _describe_collective(message: "chakra_pb2.Node", node: Collective, graph: Graph, groups: Mapping[str, str]) -> None:
    from testbed.traces.protobuf import chakra_pb2

    size_bytes = node.size_bytes
    if node.operation == "all_gather":
        size_bytes //= len(graph.groups[node.group])
    kind = chakra_pb2.CollectiveCommType.Value(_OPERATIONS[node.operation])
    message.type = chakra_pb2.COMM_COLL_NODE
    message.attr.add(name="comm_type", int64_val=kind)
    message.attr.add(name="comm_size", uint64_val=size_bytes)
    message.attr.add(name="pg_name", string_val=groups[node.group])
    message.attr.add(name="dtype", string_val=node.element_type)
    if node.root is not None:
        message.attr.add(name="root", uint32_val=node.root)
    if node.splits is not None:
        message.attr.add(name="splits", uint64_list=chakra_pb2.Uint64List(values=node.splits))

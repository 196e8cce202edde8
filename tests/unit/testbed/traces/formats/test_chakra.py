"""Chakra traces: what is written is decoded by a decoder that knows wire types and nothing else, and read back."""

import json
import shutil
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.traces.derived import derived_table
from testbed.traces.formats.base import TraceError, read_trace
from testbed.traces.formats.chakra import Chakra
from testbed.traces.generators.base import GENERATORS
from testbed.traces.graph import Collective, Compute, Graph, Receive, Send
from testbed.traces.protobuf import chakra_pb2
from testbed.traces.schedules import schedule_graph
from transports.collectives.base import COLLECTIVES

TABLE = derived_table("gpt2", batch_size=1)
EVERYTHING: Final = Graph(
    ranks=(
        (
            Compute(1.5e-6, "half a microsecond more"),
            Collective("broadcast", 6, "float16", "pair", root=1, after=(0,)),
            Collective("all_gather", 9, "uint8", "world", name="odd"),
            Collective("all_to_all", 6, "int64", "world", splits=(1, 2, 3), after=(0, 2)),
            Send(2, 5, "bfloat16", 7, "activations", (3,)),
            Collective("barrier", 0, "uint8", "world"),
        ),
        (
            Collective("broadcast", 6, "float16", "pair", root=1),
            Collective("all_gather", 9, "uint8", "world"),
            Collective("all_to_all", 0, "int64", "world", splits=(0, 0, 0)),
            Collective("barrier", 0, "uint8", "world"),
        ),
        (
            Collective("all_gather", 9, "uint8", "world"),
            Collective("all_to_all", 9, "int64", "world", splits=(3, 3, 3)),
            Receive(0, 5, "bfloat16", 7),
            Collective("barrier", 0, "uint8", "world"),
        ),
    ),
    groups={"world": (0, 1, 2), "pair": (0, 1)},
)


def written(graph: Graph, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for appendix, data in Chakra().files(graph).items():
        (folder / f"t{appendix}").write_bytes(data)
    return folder


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def fields(data: bytes) -> dict[int, list[Any]]:
    """Of one message, by number: varints as numbers, doubles, and bytes of whatever has a length (the encoding of
    Protocol Buffers, protobuf.dev/programming-guides/encoding)."""
    found: dict[int, list[Any]] = defaultdict(list)
    value: Any
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        else:
            assert key & 7 == 2
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        found[key >> 3].append(value)
    return found


def messages(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        length, at = varint(data, at)
        found.append(data[at : at + length])
        at += length
    assert at == len(data)
    return found


def attributes(node: dict[int, list[Any]]) -> dict[str, tuple[int, Any]]:
    """By name, the number of the field that holds the value, and the value."""
    found = {}
    for attribute in node[10]:
        parts = fields(attribute)
        ((number, (value,)),) = [(number, values) for number, values in parts.items() if number not in (1, 2)]
        found[parts[1][0].decode()] = (number, value)
    return found


def test_a_generic_decoder_finds_the_documented_fields(tmp_path: Path) -> None:
    """Numbers are those of mlcommons/chakra, schema/protobuf/et_def.proto."""
    folder = written(EVERYTHING, tmp_path / "c")
    metadata, *nodes = [fields(each) for each in messages((folder / "t.0.et").read_bytes())]
    assert metadata[1] == [b"0.0.4"]
    assert [node.get(1, [0])[0] for node in nodes] == list(range(6))  # 0 is left out on the wire
    assert [node[3][0] for node in nodes] == [4, 7, 7, 7, 5, 7]  # COMP, COLL, SEND
    assert nodes[0][2] == [b"half a microsecond more"]
    assert nodes[0][7] == [2]  # whole microseconds
    assert attributes(nodes[0])["duration_us"] == (3, pytest.approx(1.5))
    assert list(nodes[3][5][0]) == [0, 2]  # data_deps, packed
    gathered, sent = attributes(nodes[2]), attributes(nodes[4])
    assert gathered["is_cpu_op"] == (27, 0)
    assert gathered["comm_type"] == (9, 2)  # ALL_GATHER
    assert gathered["comm_size"] == (13, 3)  # of the rank's part
    assert gathered["pg_name"] == (29, b"1")
    assert sent["comm_size"] == (13, 10)
    assert sent["comm_dst"] == (11, 2)
    assert sent["comm_tag"] == (11, 7)
    assert json.loads((folder / "t.groups.json").read_text()) == {"1": [0, 1, 2], "2": [0, 1]}


@pytest.mark.parametrize(
    "graph",
    [
        EVERYTHING,
        GENERATORS.parse({"kind": "pipeline", "activations": "3MiB"}).generate(TABLE, 3),
        GENERATORS.parse({"kind": "mixture_of_experts", "tokens": "3MiB", "skew": 1}).generate(TABLE, 4),
        GENERATORS.parse("fsdp").generate(TABLE, 2),
    ],
    ids=["everything", "pipeline", "mixture_of_experts", "fsdp"],
)
def test_an_export_is_read_back_with_the_same_bytes_in_the_same_order(graph: Graph, tmp_path: Path) -> None:
    again = read_trace(written(graph, tmp_path / "c"))
    assert isinstance(again, Graph)
    names = {str(number): name for number, name in enumerate(graph.groups, 1)}
    assert {names[name]: members for name, members in again.groups.items()} == graph.groups
    assert again.matches == graph.matches
    for before, after in zip(graph.ranks, again.ranks, strict=True):
        for expected, node in zip(before, after, strict=True):
            if isinstance(expected, Compute):
                assert isinstance(node, Compute)
                assert node.duration_s == pytest.approx(expected.duration_s)
                assert node[1:] == expected[1:]
            elif isinstance(expected, Collective):
                assert isinstance(node, Collective)
                assert node._replace(group=names[node.group]) == expected
            else:
                assert node == expected


def test_what_other_tools_write_is_read(tmp_path: Path) -> None:
    """No groups, no types, dependencies of both kinds, times in whole microseconds, attributes of other types."""
    for rank in range(2):
        message = chakra_pb2.Node(id=40, name="mm", type=chakra_pb2.COMP_NODE, duration_micros=5)
        collective = chakra_pb2.Node(id=50, type=chakra_pb2.COMM_COLL_NODE, data_deps=[40], ctrl_deps=[40])
        collective.attr.add(name="comm_type", int32_val=chakra_pb2.ALL_REDUCE)
        collective.attr.add(name="comm_size", int64_val=65540)
        parts = [chakra_pb2.GlobalMetadata(version="0.0.4"), message, collective]
        data = b"".join(bytes([len(each.SerializeToString())]) + each.SerializeToString() for each in parts)
        (tmp_path / f"x.{rank}.et").write_bytes(data)
    graph = read_trace(tmp_path)
    assert isinstance(graph, Graph)
    computed, exchanged = graph.ranks[0]
    assert isinstance(computed, Compute)
    assert (computed.duration_s, computed.name) == (pytest.approx(5e-6), "mm")
    assert exchanged == Collective("all_reduce", 16385, "float32", "world", after=(0,)), "in no parts"


def everywhere(tmp_path: Path, *nodes: chakra_pb2.Node) -> Path:
    """The same nodes on two ranks, with one group of both that nodes need not name."""
    for rank in range(2):
        parts = [each.SerializeToString() for each in (chakra_pb2.GlobalMetadata(version="0.0.4"), *nodes)]
        (tmp_path / f"x.{rank}.et").write_bytes(b"".join(bytes([len(each)]) + each for each in parts))
    (tmp_path / "x.groups.json").write_text('{"0": [0, 1]}')
    return tmp_path


def reduced(involved: list[bool], **group: str) -> chakra_pb2.Node:
    node = chakra_pb2.Node(id=7, name="gradients", type=chakra_pb2.COMM_COLL_NODE)
    node.attr.add(name="comm_type", int64_val=chakra_pb2.ALL_REDUCE)
    node.attr.add(name="comm_size", uint64_val=65536)
    node.attr.add(name="involved_dim", bool_list=chakra_pb2.BoolList(values=involved))
    for name, value in group.items():
        node.attr.add(name=name, string_val=value)
    return node


def computed(number: int, *, by_processor: bool, duration_us: int = 5) -> chakra_pb2.Node:
    node = chakra_pb2.Node(id=number, name="mm", type=chakra_pb2.COMP_NODE, duration_micros=duration_us)
    node.attr.add(name="is_cpu_op", bool_val=by_processor)
    return node


def test_some_dimensions_of_a_network_that_nobody_says_are_refused(tmp_path: Path) -> None:
    """ASTRA-sim exchanges over these alone where no group is named: it became an operation of all ranks."""
    with pytest.raises(TraceError, match=r"x\.0\.et: node 7 \(gradients\): involved_dim names some dimensions"):
        read_trace(everywhere(tmp_path, reduced([True, False])))
    for node, group in ((reduced([True, True]), "world"), (reduced([True, False], pg_name="0"), "0")):
        graph = read_trace(everywhere(tmp_path, node))
        assert isinstance(graph, Graph)
        assert graph.ranks[0] == (Collective("all_reduce", 16384, "float32", group, name="gradients"),)


def test_a_processor_s_computing_beside_a_device_s_is_refused(tmp_path: Path) -> None:
    """Both go on at once, and were added up."""
    both = computed(4, by_processor=True), computed(5, by_processor=False)
    with pytest.raises(TraceError, match=r"x\.0\.et: node 4 \(mm\): a processor computes it \(is_cpu_op\)"):
        read_trace(everywhere(tmp_path, *both))
    without = computed(4, by_processor=True, duration_us=0), both[1]
    for nodes in (without, both[:1], both[1:]):
        graph = read_trace(everywhere(tmp_path, *nodes))
        assert isinstance(graph, Graph)
        assert sum(node.duration_s for node in graph.ranks[0] if isinstance(node, Compute)) == pytest.approx(5e-6)


def changed(tmp_path: Path, **fields_: Any) -> Path:
    folder = written(EVERYTHING, tmp_path / "c")
    node = chakra_pb2.Node(id=0, type=chakra_pb2.COMM_COLL_NODE)
    attributes = fields_.pop("attributes", {})
    for name, value in fields_.items():
        if isinstance(value, list):
            getattr(node, name).extend(value)
        else:
            setattr(node, name, value)
    for name, value in attributes.items():
        node.attr.add(name=name, **({"string_val": value} if isinstance(value, str) else {"int64_val": value}))
    data = node.SerializeToString()
    (folder / "t.1.et").write_bytes(b"\x00" + bytes([len(data)]) + data)
    return folder


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, "node 0: attribute comm_type is missing"),
        ({"attributes": {"comm_type": 99}}, "comm_type 99 is not known"),
        ({"attributes": {"comm_type": 0}}, "comm_size is missing"),
        ({"attributes": {"comm_type": 0, "comm_size": -1}}, "comm_size is -1"),
        ({"attributes": {"comm_type": 0, "comm_size": "a"}}, "comm_size is 'a'"),
        ({"attributes": {"comm_type": 0, "comm_size": 8, "pg_name": "9"}}, r"group \(pg_name\) '9' is not in a file"),
        ({"attributes": {"comm_type": 0, "comm_size": 8, "dtype": "x"}}, "dtype 'x' is not known"),
        ({"attributes": {"comm_type": 0, "comm_size": 9, "dtype": "float32"}}, "no number of float32 has"),
        ({"data_deps": [7]}, "it waits for node 7, which is not there"),
        ({"type": chakra_pb2.MEM_LOAD_NODE}, "its type is MEM_LOAD_NODE; allowed: COMP_NODE"),
        ({"type": 77}, "its type is 77; allowed"),
        ({"type": chakra_pb2.COMP_NODE, "attributes": {"num_ops": 5}}, "says num_ops and no duration_micros"),
        ({"type": chakra_pb2.COMM_SEND_NODE, "attributes": {"comm_size": 4}}, "comm_dst is missing"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_node(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(TraceError, match=problem) as caught:
        read_trace(changed(tmp_path, **change))
    assert "t.1.et: node 0" in str(caught.value)


@pytest.mark.parametrize("members", [[], [1]], ids=["none", "one"])
def test_a_group_in_which_nobody_is_met_is_named_with_the_node_that_uses_it(tmp_path: Path, members: list[int]) -> None:
    """An empty one ended in a ZeroDivisionError. Those that nothing uses are legal."""
    folder = changed(tmp_path, attributes={"comm_type": 0, "comm_size": 8, "pg_name": "7"})
    groups = json.loads((folder / "t.groups.json").read_text())
    (folder / "t.groups.json").write_text(json.dumps({**groups, "7": members}))
    with pytest.raises(TraceError, match=rf"t\.1\.et: node 0: its group \(pg_name\) '7' has {len(members)} members"):
        read_trace(folder)
    written(EVERYTHING, folder)
    (folder / "t.groups.json").write_text(json.dumps({**groups, "7": members}))
    read_trace(folder)


def test_a_rank_that_is_missing_and_a_file_that_does_not_belong_are_named(tmp_path: Path) -> None:
    folder = written(EVERYTHING, tmp_path / "c")
    (folder / "t.1.et").rename(folder / "t.7.et")
    with pytest.raises(TraceError, match="there are 3 ranks, and none of them is rank 1"):
        read_trace(folder)
    shutil.copy(folder / "t.0.et", folder / "u.0.et")
    with pytest.raises(TraceError, match="is rank 0 as well"):
        read_trace(folder)
    (folder / "u.0.et").rename(folder / "notes.txt")
    with pytest.raises(TraceError, match=r"notes\.txt: a directory of Chakra traces holds NAME\.RANK\.et"):
        read_trace(folder)


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_to_a_file_it_is_valid_or_refused_with_its_name(tmp_path: Path, data: st.DataObject) -> None:
    folder = written(EVERYTHING, tmp_path / "c")
    content = (folder / "t.0.et").read_bytes()
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.sampled_from([begin, begin + 1, begin + 4, len(content)]))
    (folder / "t.0.et").write_bytes(content[:begin] + data.draw(st.binary(max_size=3)) + content[end:])
    try:
        read_trace(folder)
        outcome = "valid"
    except TraceError as error:
        outcome = str(error)
    assert outcome == "valid" or outcome.startswith(str(folder))


@pytest.mark.parametrize("kind", ["ring", "halving_doubling", "tree", "all_to_all", "recursive_doubling"])
@pytest.mark.parametrize("num_workers", [2, 4, 5])
def test_a_collectives_schedule_is_written_rank_by_rank(kind: str, num_workers: int, tmp_path: Path) -> None:
    """As custom collectives: what each rank sends to each other is what the schedule says."""
    from transports.collectives.base import World
    from transports.collectives.cost import sent_bytes

    collective = COLLECTIVES.parse(kind)
    graph = schedule_graph(collective, "all_reduce", num_workers, 10_000, "float32")
    again = read_trace(written(graph, tmp_path / "c"))
    assert isinstance(again, Graph)
    sent: dict[tuple[int, int], int] = defaultdict(int)
    for rank, nodes in enumerate(again.ranks):
        for node in nodes:
            if isinstance(node, Send):
                sent[rank, node.peer] += node.size_bytes
    expected = sent_bytes(collective, "all_reduce", World(num_workers=num_workers), 10_000, 4)
    assert sent == {pair: traffic.payload_bytes for pair, traffic in expected.items()}

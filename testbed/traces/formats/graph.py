"""Graphs as JSON, one node a line: the format of our own.

    {"format": "testbed graph", "version": 1,
     "groups": {"world": [0, 1]},
     "ranks": [
      [
       {"kind": "compute", "name": "forward", "duration_us": 1200.0},
       {"kind": "collective", "operation": "all_reduce", "group": "world", "type": "float32", "num_elements": 1024,
        "after": [0]},
       {"kind": "send", "peer": 1, "type": "float32", "num_elements": 64, "tag": 3, "after": [1]}
      ],
      [ ... ]
     ]}

A node's number is its place in its rank's list, from 0; `after` names nodes of the same rank. `root` is of broadcast,
reduce, gather and scatter, `splits` of an all_to_all whose parts differ (testbed/traces/graph.py says all of it).
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from testbed.traces.formats.base import TRACE_FORMATS, File, Source, Trace, TraceError, TraceFormat
from testbed.traces.graph import Collective, Compute, Graph, GraphError, Node, Receive, Send
from testbed.traces.table import LayerTable

_FORMAT: Final = "testbed graph"
_BEGINNING: Final = re.compile(f'"format"\\s*:\\s*"{_FORMAT}"'.encode())
_VERSION: Final = 1
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "compute": frozenset(("duration_us",)),
    "collective": frozenset(("operation", "group", "type", "num_elements", "root", "splits")),
    "send": frozenset(("peer", "type", "num_elements", "tag")),
    "receive": frozenset(("peer", "type", "num_elements", "tag")),
}
_COMMON: Final = frozenset(("kind", "name", "after"))


@TRACE_FORMATS.register
class GraphFormat(TraceFormat):
    """Graphs of our own; the format has no options."""

    def takes(self, source: Source) -> bool:
        """It says its name at its beginning."""
        return len(source.files) == 1 and _BEGINNING.search(source.files[0].data[:200]) is not None

    def load(self, source: Source) -> Graph:
        """See :class:`TraceFormat`."""
        (file,) = source.files
        return parse_graph(file.text(), file)

    def files(self, trace: Trace) -> Mapping[str, bytes]:
        """See :class:`TraceFormat`."""
        if isinstance(trace, LayerTable):
            raise TraceError(
                "a table of layers is no graph until it is said how ranks divide it: `testbed trace generate`"
            )
        return {"": graph_text(trace).encode()}


def graph_text(graph: Graph) -> str:
    """The graph as a file of this format."""
    ranks = ",\n".join(
        "  [\n" + ",\n".join(f"   {_line(_as_json(node))}" for node in nodes) + "\n  ]" for nodes in graph.ranks
    )
    groups = {name: list(members) for name, members in graph.groups.items()}
    head = f'{{"format": "{_FORMAT}", "version": {_VERSION},\n "groups": {_line(groups)},\n "ranks": [\n'
    return f"{head}{ranks}\n ]}}\n"


def parse_graph(text: str, file: File) -> Graph:
    """The graph in a text. Raises TraceError, or GraphError, naming the line or the node."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        file.fail("it is nested too deeply")
    except ValueError as error:
        file.fail(f"no whole JSON: {error}")
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        file.fail(f'it does not begin with "format": "{_FORMAT}"')
    if data.get("version") != _VERSION:
        file.fail(f"version {data.get('version')!r} is not known; allowed: {_VERSION}")
    if unknown := set(data) - {"format", "version", "groups", "ranks"}:
        file.fail(f"unknown keys: {', '.join(sorted(unknown))}")
    groups, ranks = data.get("groups"), data.get("ranks")
    if not isinstance(groups, dict) or not isinstance(ranks, list):
        file.fail("`groups` is a mapping of names to ranks, and `ranks` a list of lists of nodes")
    return Graph(
        ranks=tuple(_nodes(file, rank, nodes) for rank, nodes in enumerate(ranks)),
        groups={
            name: _Fields(f"group {name}", {"members": members}).counts("members") for name, members in groups.items()
        },
    )


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _line(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def _as_json(node: Node) -> dict[str, Any]:
    named = {"name": node.name} if node.name else {}
    waits = {"after": list(node.after)} if node.after else {}
    if isinstance(node, Compute):
        return {"kind": "compute", **named, "duration_us": node.duration_s * 1e6, **waits}
    size = {"type": node.element_type, "num_elements": node.num_elements}
    if isinstance(node, Collective):
        root = {} if node.root is None else {"root": node.root}
        splits = {} if node.splits is None else {"splits": list(node.splits)}
        what = {"operation": node.operation, "group": node.group, **size, **root, **splits}
        return {"kind": "collective", **named, **what, **waits}
    kind = "send" if isinstance(node, Send) else "receive"
    return {"kind": kind, **named, "peer": node.peer, **size, "tag": node.tag, **waits}


def _nodes(file: File, rank: int, nodes: object) -> tuple[Node, ...]:
    if not isinstance(nodes, list):
        file.fail(f"rank {rank} is a list of nodes, not {type(nodes).__name__}")
    return tuple(_node(_Fields(f"rank {rank}, node {number}", fields)) for number, fields in enumerate(nodes))


def _node(fields: "_Fields") -> Node:
    kind = fields.word("kind")
    if kind not in _KEYS:
        fields.fail(f"kind {kind!r} is not known; allowed: {', '.join(_KEYS)}")
    if unknown := set(fields.data) - _KEYS[kind] - _COMMON:
        fields.fail(f"{kind} has no {', '.join(sorted(map(str, unknown)))}")
    name, after = fields.word("name", ""), fields.counts("after") if "after" in fields.data else ()
    if kind == "compute":
        return Compute(fields.number("duration_us") * 1e-6, name, after)
    size = fields.count("num_elements"), fields.word("type")
    if kind == "collective":
        return Collective(
            fields.word("operation"),  # type: ignore[arg-type]  # the graph checks it, and says what is allowed
            *size,
            fields.word("group"),
            fields.count("root") if "root" in fields.data else None,
            fields.counts("splits") if "splits" in fields.data else None,
            name,
            after,
        )
    tag = fields.count("tag") if "tag" in fields.data else 0
    message: type[Send | Receive] = Send if kind == "send" else Receive
    return message(fields.count("peer"), *size, tag, name, after)


class _Fields:
    """A mapping of the file, and what it is called in errors."""

    def __init__(self, title: str, data: object) -> None:
        self._title = title
        if not isinstance(data, dict):
            raise GraphError(f"{title}: it is a mapping, not {type(data).__name__}")
        self.data: Mapping[str, object] = data

    def fail(self, problem: str) -> NoReturn:
        """Raises GraphError."""
        raise GraphError(f"{self._title}: {problem}")

    def word(self, key: str, default: str | None = None) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str):
            self.fail(f"{key} is {_shown(value)}, which is not a word")
        return value

    def number(self, key: str) -> float:
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(f"{key} is {_shown(value)}, which is not a number")
        try:
            return float(value)
        except OverflowError:
            self.fail(f"{key} is larger than any time")

    def count(self, key: str) -> int:
        return self._count(key, self.data.get(key))

    def counts(self, key: str) -> tuple[int, ...]:
        value = self.data.get(key)
        if not isinstance(value, Sequence) or isinstance(value, str):
            self.fail(f"{key} is {_shown(value)}, which is not a list of whole numbers")
        return tuple(self._count(key, each) for each in value)

    def _count(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            self.fail(f"{key} is {_shown(value)}, which is not a whole number, at least 0")
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."

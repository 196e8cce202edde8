"""A trace that is a graph, as a person reads it."""

from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.record.number_text import size_text, time_text
from testbed.traces.graph import Collective, Compute, Graph, Send

_NUM_RANKS = 16
"""Shown; the rest are counted."""


def render_graph(graph: Graph, source: str, console: Console) -> None:
    """Totals, and what each rank does."""
    num_nodes = sum(map(len, graph.ranks))
    of_what = f"  a graph of {graph.num_ranks} ranks and {num_nodes} nodes"
    console.print(Text.assemble((source, "bold"), of_what), highlight=False)
    groups = [f"{name} ({len(members)} ranks)" for name, members in graph.groups.items()]
    console.print(f"groups: {', '.join(groups) or 'none'}", highlight=False, markup=False)
    console.print(
        f"an iteration lasts {time_text(graph.critical_path_s())} where exchanges take no time\n", highlight=False
    )
    rows = Table(box=None, pad_edge=False)
    for column in ("exchanges", "number", "elements are", "bytes of each", "bytes in all"):
        rows.add_column(column, justify="left" if column in ("exchanges", "elements are") else "right")
    for (name, element_type, size_bytes), count in sorted(exchanges(graph).items()):
        rows.add_row(name, str(count), element_type, size_text(size_bytes), size_text(count * size_bytes))
    console.print(rows)
    ranks = Table(box=None, pad_edge=False)
    for column in ("rank", "nodes", "computes for", "collectives", "messages sent", "bytes sent in messages"):
        ranks.add_column(column, justify="right")
    for row in _ranks(graph)[:_NUM_RANKS]:
        ranks.add_row(
            str(row["rank"]),
            str(row["num_nodes"]),
            time_text(row["compute_s"]),
            str(row["num_collectives"]),
            str(row["num_messages"]),
            size_text(row["message_bytes"]),
        )
    console.print()
    console.print(ranks)
    if graph.num_ranks > _NUM_RANKS:
        console.print(f"and {graph.num_ranks - _NUM_RANKS} more", style="dim")


def exchanges(graph: Graph) -> Counter[tuple[str, str, int]]:
    """How many there are of each operation, element type and size in bytes (of a collective's larger buffer; of an
    all_to_all whose parts differ, of all of a rank's parts); messages once."""
    found: Counter[tuple[str, str, int]] = Counter()
    for match in graph.matches:
        node = graph.node(match[0])
        assert not isinstance(node, Compute), "only exchanges are matched"
        name = node.operation if isinstance(node, Collective) else "message"
        found[name, node.element_type, node.size_bytes] += 1
    return found


def graph_json(graph: Graph, source: str) -> dict[str, Any]:
    """The same as plain data, for scripts."""
    return {
        "trace": source,
        "num_ranks": graph.num_ranks,
        "groups": {name: list(members) for name, members in graph.groups.items()},
        "critical_path_s": graph.critical_path_s(),
        "exchanges": [
            {"operation": name, "element_type": element_type, "size_bytes": size_bytes, "count": count}
            for (name, element_type, size_bytes), count in sorted(exchanges(graph).items())
        ],
        "ranks": _ranks(graph),
    }


def _ranks(graph: Graph) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "num_nodes": len(nodes),
            "compute_s": graph.compute_s(rank),
            "num_collectives": sum(isinstance(node, Collective) for node in nodes),
            "num_messages": sum(isinstance(node, Send) for node in nodes),
            "message_bytes": sum(node.size_bytes for node in nodes if isinstance(node, Send)),
        }
        for rank, nodes in enumerate(graph.ranks)
    ]

"""InfraGraph documents: a small one of our own, and the blueprints that the format's own package comes with."""

from collections.abc import Callable
from typing import Any, Final

from infragraph.blueprints.devices.generic.generic_switch import Switch
from infragraph.blueprints.devices.generic.server import Server
from infragraph.blueprints.devices.nvidia.dgx import NvidiaDGX
from infragraph.blueprints.fabrics.clos_fat_tree_fabric import ClosFatTreeFabric
from infragraph.blueprints.fabrics.closfabric import ClosFabric
from infragraph.blueprints.fabrics.dragonfly_fabric import DragonflyFabric
from infragraph.blueprints.fabrics.hybrid_debruijn_fabric import HybridDeBruijnFabric
from infragraph.blueprints.fabrics.multi_host_debruijn_fabric import MultiHostDeBruijnFabric
from infragraph.blueprints.fabrics.single_tier_fabric import SingleTierFabric

BLUEPRINTS: Final[dict[str, Callable[[], Any]]] = {
    "fat tree of three levels": lambda: ClosFatTreeFabric(Switch(port_count=4), Server(), 3, [100, 100, 100]),
    "oversubscribed": lambda: ClosFatTreeFabric(Switch(port_count=8), Server(), 3, []),
    "DGX H100 in two levels": lambda: ClosFatTreeFabric(Switch(port_count=16), NvidiaDGX(), 2, []),
    "DGX A100": lambda: SingleTierFabric(NvidiaDGX("dgx_a100"), 4, 100),
    "clos": ClosFabric,
    "dragonfly": lambda: DragonflyFabric(Switch(port_count=16), Server(), 4, 2, 2),
    "de Bruijn": lambda: MultiHostDeBruijnFabric(Switch(port_count=8), Server(), 2),
    "hybrid de Bruijn": lambda: HybridDeBruijnFabric(Switch(port_count=16), Server(), 2),
}
FAT_TREE: Final = BLUEPRINTS["fat tree of three levels"]


def link(name: str, gigabits: float, **latency: float) -> dict[str, Any]:
    bandwidth = {"choice": "gigabits_per_second", "gigabits_per_second": gigabits}
    return {"name": name, "physical": {"bandwidth": bandwidth, **({"latency": latency} if latency else {})}}


def edge(one: str, other: str, link: str, scheme: str = "one2one") -> dict[str, Any]:
    """Of `host[0] nic[0]` and `leaf[0] port[1]`."""
    ends = (dict(zip(("instance", "component"), end.split(), strict=True)) for end in (one, other))
    first, second = ends
    return {"ep1": first, "ep2": second, "scheme": scheme, "link": link}


def two_leaves() -> dict[str, Any]:
    """Two hosts with two links each, on two leaves with a spine; the first leaf's uplinks are two in parallel."""
    return {
        "name": "two-leaves",
        "devices": [
            {
                "name": "server",
                "components": [
                    {"name": "gpu", "count": 2, "choice": "xpu"},
                    {"name": "nic", "count": 2, "choice": "nic"},
                ],
                "links": [{"name": "nvlink"}],
                "edges": [
                    {"ep1": {"component": "gpu"}, "ep2": {"component": "nic"}, "scheme": "many2many", "link": "nvlink"}
                ],
            },
            {
                "name": "box",
                "components": [
                    {"name": "asic", "count": 1, "choice": "cpu"},
                    {"name": "port", "count": 4, "choice": "port"},
                ],
                "links": [],
                "edges": [],
            },
        ],
        "links": [link("access", 100, us=1.5), link("uplink", 200)],
        "instances": [
            {"name": "host", "device": "server", "count": 2},
            {"name": "leaf", "device": "box", "count": 2},
            {"name": "spine", "device": "box", "count": 1},
        ],
        "edges": [
            edge("host[0] nic[0:2]", "leaf[0] port[0:2]", "access"),
            edge("host[1] nic", "leaf[1] port", "access"),
            edge("leaf[0] port[2:]", "spine[0] port[:2]", "uplink"),
            edge("leaf[1] port[2]", "spine[0] port[-1]", "uplink"),
        ],
    }

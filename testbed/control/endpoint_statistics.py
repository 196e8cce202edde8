"""What workers' own endpoints counted over the measured iterations, as they report it."""

import json
from collections.abc import Mapping
from dataclasses import asdict

from transports.channels.base import PeerStatistics


def dump(before: Mapping[int, PeerStatistics], after: Mapping[int, PeerStatistics]) -> dict[str, dict[str, int]]:
    """What a worker reports of the time between, as plain data."""
    found = {}
    for peer, counts in after.items():
        earlier = asdict(before[peer])
        found[str(peer)] = {name: count - earlier[name] for name, count in asdict(counts).items()}
    return found


def parse(text: str) -> dict[int, PeerStatistics]:
    """Out of a worker's result; nothing where its channel leaves counting to the kernel."""
    found = json.loads(text).get("peers") or {}
    return {int(peer): PeerStatistics(**counts) for peer, counts in found.items()}

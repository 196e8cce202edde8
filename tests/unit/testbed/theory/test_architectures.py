"""Architectures: what the formulas must say whatever the numbers, and what they cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.theory.architectures import (
    ARCHITECTURES,
    Architecture,
    InNetwork,
    Links,
    PeersSharded,
    PeersWhole,
    Ring,
    Servers,
    iteration_s,
)
from testbed.traces.table import Layer, LayerTable
from transports.collectives.base import COLLECTIVES, World
from transports.collectives.cost import sent_bytes

LINKS = Links(rate_bps=1e9)


@pytest.mark.parametrize(("num_workers", "ratio"), [(4, 16 / 3), (8, 64 / 7), (16, 256 / 15)])
def test_one_server_takes_w_squared_over_w_minus_one_times_the_ring(num_workers: int, ratio: float) -> None:
    server, ring = (each.time_s(10**8, num_workers, LINKS) for each in (Servers(1), Ring()))
    assert server / ring == pytest.approx(ratio)


def test_servers_help_until_workers_own_links_decide() -> None:
    times = [Servers(count).time_s(10**6, 8, LINKS) for count in (1, 2, 8, 16)]
    assert times == [pytest.approx(8e-3 * 2 * each) for each in (8, 4, 1, 1)]
    assert Servers(2).server_bytes(10**6, 8) == 4 * 10**6


def test_one_worker_among_peers_exchanges_nothing() -> None:
    links = Links(rate_bps=1e9, latency_s=1.0, addition_s_per_byte=1.0)
    for architecture in (PeersWhole(), PeersSharded(), Ring(), InNetwork()):
        assert architecture.time_s(100, 1, links) == 0.0
        assert architecture.worker_bytes(100, 1) == 0.0


def test_a_server_is_as_far_away_as_a_worker_and_an_aggregating_switch_half_as_far() -> None:
    far = Links(rate_bps=1e9, latency_s=10e-3)
    for architecture, added_s in ((Servers(2), 20e-3), (InNetwork(), 10e-3)):
        assert architecture.time_s(10**6, 4, far) - architecture.time_s(10**6, 4, LINKS) == pytest.approx(added_s)


def test_far_away_the_ring_loses_to_shards() -> None:
    near, far = Links(rate_bps=1e9, latency_s=1e-5), Links(rate_bps=1e9, latency_s=50e-3)
    for links, ring_wins in ((near, True), (far, False)):
        ring_s, shards_s = (each.time_s(10**6, 16, links) for each in (Ring(), PeersSharded()))
        assert (ring_s <= shards_s * 1.05) == ring_wins


@given(st.integers(2, 64), st.integers(1, 10**9), st.floats(1e6, 1e12))
def test_nobody_is_faster_than_the_bytes_that_a_worker_sends(
    num_workers: int, size_bytes: int, rate_bps: float
) -> None:
    links = Links(rate_bps=rate_bps, latency_s=1e-6)
    for architecture in ARCHITECTURES.values():
        least_s = 8 * architecture.worker_bytes(size_bytes, num_workers) / rate_bps
        assert architecture.time_s(size_bytes, num_workers, links) >= least_s


@pytest.mark.parametrize(
    ("architecture", "collective"),
    [(PeersSharded(), {"kind": "parameter_server", "placement": "co_located"}), (Ring(), {"kind": "ring"})],
)
@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_what_workers_send_is_what_our_schedules_send(
    architecture: Architecture, collective: dict[str, object], num_workers: int
) -> None:
    servers = {"servers": num_workers} if collective["kind"] == "parameter_server" else {}
    chosen = COLLECTIVES.parse({**collective, **servers})
    counts = sent_bytes(chosen, "all_reduce", World(num_workers=num_workers), 840 * 1000, 4)
    from_first = sum(count.payload_bytes for (sender, _), count in counts.items() if sender == 0)
    assert from_first == pytest.approx(architecture.worker_bytes(840 * 1000 * 4, num_workers), rel=1e-3)


def test_overlap_hides_what_backward_covers() -> None:
    table = LayerTable(layers=tuple(Layer(str(number), 0.0, 0.01, 10**6) for number in range(4)))
    apart = iteration_s(table, InNetwork(), 4, LINKS)
    overlapped = iteration_s(table, InNetwork(), 4, LINKS, table.gradients())
    assert apart == pytest.approx(0.04 + 0.032)
    assert overlapped == pytest.approx(0.04 + 0.008)

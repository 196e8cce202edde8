"""The parameter server's own promises; what every collective promises is in `tests/contract/test_collectives.py`."""

from typing import Any

import pytest
from pydantic import ValidationError

from transports.collectives.base import COLLECTIVES
from transports.collectives.cost import sent_bytes
from transports.collectives.network_info import NetworkInfo
from transports.collectives.parameter_server import ParameterServer
from transports.collectives.timing import alpha_beta_time_s
from transports.errors import OptionError

SIZE_BYTES = 4_000_000
ONCE_S = SIZE_BYTES * 8e-9


def time_s(collective: ParameterServer, num_workers: int) -> float:
    world = collective.world(num_workers)
    return alpha_beta_time_s(collective, "all_reduce", world, SIZE_BYTES // 4, 4, alpha_s=1e-5, beta_s_per_byte=8e-9)


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_one_server_takes_two_gradients_for_each_worker(num_workers: int) -> None:
    assert time_s(ParameterServer(), num_workers) == pytest.approx(2 * num_workers * ONCE_S, rel=0.02)


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_a_pipelined_one_takes_one(num_workers: int) -> None:
    assert time_s(ParameterServer(pipelined=True), num_workers) == pytest.approx(num_workers * ONCE_S, rel=0.04)


def test_as_many_servers_as_workers_take_one_gradient_s_time() -> None:
    assert time_s(ParameterServer(servers=4, pipelined=True), 4) == pytest.approx(ONCE_S, rel=0.15)
    assert time_s(ParameterServer(servers=4), 4) == pytest.approx(2 * ONCE_S, rel=0.02)


def under_way(collective: ParameterServer, num_workers: int) -> int:
    """The most messages that a worker has sent to its server without having an answer, if all answers come at once."""
    steps = collective.schedule("all_reduce", collective.world(num_workers), 0, SIZE_BYTES // 4, element_bytes=4)
    waits_for = [step.after for step in steps if step.kind == "send"]
    return waits_for.index(next(after for after in waits_for if after))


def test_a_pipelined_worker_waits_for_answers_so_that_none_runs_ahead_of_the_others() -> None:
    assert under_way(ParameterServer(pipelined=True), 8) == 4
    assert under_way(ParameterServer(pipelined=True), 2) == 9  # 512 KiB of messages of 31,250 B, of two workers
    steps = ParameterServer().schedule("all_reduce", ParameterServer().world(2), 0, SIZE_BYTES // 4, element_bytes=4)
    assert not any(step.after for step in steps)


def test_on_long_links_more_is_under_way() -> None:
    assert (
        ParameterServer(pipelined=True).with_network_info(NetworkInfo(latency_s=1e-3, rate_bps=1e8)).credit_bytes
        == 512 * 1024
    )
    assert (
        ParameterServer(pipelined=True).with_network_info(NetworkInfo(latency_s=10e-3, rate_bps=1e9)).credit_bytes
        == 5_000_000
    )


@pytest.mark.parametrize("options", [{}, {"pipelined": True, "placement": "co_located"}])
def test_a_credit_that_nothing_reads_is_refused_and_none_is_said(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="credit: only pipelined, dedicated servers have one"):
        COLLECTIVES.parse({"kind": "parameter_server", "credit": "1MiB", **options})
    server = COLLECTIVES.parse({"kind": "parameter_server", **options})
    far = server.with_network_info(NetworkInfo(latency_s=10e-3, rate_bps=1e9))
    assert COLLECTIVES.parse(COLLECTIVES.dump(far)) == server
    assert not server.goes_by_hosts


def test_co_located_servers_send_as_little_as_a_ring() -> None:
    collective = ParameterServer(servers=4, placement="co_located")
    counts = sent_bytes(collective, "all_reduce", collective.world(4), 1000, 4)
    assert sum(count.payload_bytes for count in counts.values()) == 2 * 3 * 4000
    assert collective.world(4).num_servers == 0


def test_dedicated_servers_are_participants_after_the_workers() -> None:
    collective = ParameterServer(servers=2)
    counts = sent_bytes(collective, "all_reduce", collective.world(3), 1001, 4)
    assert set(counts) == {(worker, server) for worker in range(3) for server in (3, 4)} | {
        (server, worker) for worker in range(3) for server in (3, 4)
    }
    assert counts[0, 3].payload_bytes == counts[3, 0].payload_bytes == 4 * 501
    assert counts[3, 0].num_messages == 1


def test_more_servers_than_workers_cannot_be_workers() -> None:
    collective = ParameterServer(servers=3, placement="co_located")
    with pytest.raises(OptionError, match="at most 2"):
        collective.schedule("all_reduce", collective.world(2), 0, 10, element_bytes=4)

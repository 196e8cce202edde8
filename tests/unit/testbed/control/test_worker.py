"""What a worker counted comes out of its report as it went in."""

import json

from testbed.control.worker import WorkerConfiguration, WorkerResult
from transports.channels.base import PeerStatistics
from transports.collectives.costs import Costs
from transports.collectives.network_info import NetworkInfo


def test_the_endpoints_counts_are_those_of_the_time_between() -> None:
    before = {1: PeerStatistics(payload_bytes_sent=10), 2: PeerStatistics()}
    after = {1: PeerStatistics(payload_bytes_sent=30, retransmitted_bytes=5), 2: PeerStatistics()}
    reported = json.dumps(WorkerResult.dump(None, (before, after)))
    found = WorkerResult.parse(reported)
    assert found.switch is None
    assert found.peers == {1: PeerStatistics(payload_bytes_sent=20, retransmitted_bytes=5), 2: PeerStatistics()}


def test_a_switchs_counts_are_what_happened_between() -> None:
    counts = {
        "repeated": 1, "timeouts": 2, "fast_retransmissions": 3, "duplicates": 4, "partial": 0, "frame_bytes": 1070,
        "lost": None, "slot_latencies": [5, 0, 2],
    }  # fmt: skip
    later = counts | {"repeated": 4, "timeouts": 3, "lost": "it ended", "slot_latencies": [5, 7, 3]}
    found = WorkerResult.parse(json.dumps(WorkerResult.dump((counts, later), None)))
    assert found.peers == {}
    assert found.switch is not None
    assert (found.switch.repeated, found.switch.sent_again, found.switch.lost) == (3, 1, "it ended")
    assert found.switch.slot_latencies == (0, 7, 1)


def test_nothing_to_report_is_nothing() -> None:
    assert WorkerResult.dump(None, None) == {}


def test_what_is_known_of_the_network_comes_to_the_worker() -> None:
    known = NetworkInfo(
        latency_s=1e-4, rate_bps=1e9, queue_bytes=5e4, burst_bytes=15_000, costs=Costs(message_s=103e-6, num_cores=2)
    )
    given = WorkerConfiguration(
        run_id="x", rank=0, num_workers=2, host="w0", interface="w0-eth0", address="10.0.0.1", seed=0, workload={},
        network_info=known, collective={}, channel={}, compression={}, stack=None, dilation=1.0, timeout_s=1.0,
        store_path="", num_threads=1,
    )  # fmt: skip
    assert WorkerConfiguration.model_validate_json(given.model_dump_json()).network_info == known

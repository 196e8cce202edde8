"""What was run fits a line, and says what is not as it is by default."""

from typing import Any

import pytest

from testbed.experiment.experiment import validate
from testbed.report.terminal.setup import setup_text

IMPORTED = {
    "kind": "infragraph",
    "switches": {"s0": "leaf.0"},
    "hosts": [{"name": f"host.{number}", "at": "s0", "link": {"rate": "1gbit"}} for number in range(4)],
    "notes": ["a document"],
}
STAR = "star · 100 Mbit/s · "


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, STAR + "ring over tcp · buckets of 1MiB"),
        ({"link": {"rate": "100mbit", "delay": "1ms", "loss": "1%"}}, "star · 100 Mbit/s, 1 ms, lossy · ring over tcp"),
        ({"links": {"w0-s0": {"rate": "1gbit"}}}, "star · 100 Mbit/s, some links differ · ring"),
        ({"channel": {"kind": "tcp", "streams": 4}, "fusion": "layers"}, "ring over tcp (streams 4) · layer by layer"),
        ({"collective": {"kind": "parameter_server", "pipelined": True}}, "parameter_server (pipelined true) over tcp"),
        ({"stack": "gloo", "fusion": "none"}, STAR + "gloo · all after backward"),
        ({"compression": {"kind": "top_k", "ratio": "5%"}}, "compressed by top_k (ratio 0.05)"),
        ({"fusion": "horovod_1ms"}, "buckets of 1ms, 128MiB at most"),
        ({"fusion": "priority"}, "front layers first, 1MiB at once"),
        ({"fusion": "merged"}, "merged layers"),
        ({"synchronisation": "local_sgd"}, "local_sgd, every 8 iterations"),
        ({"packet_mode": "mtu", "workload": {"kind": "allreduce"}}, STAR + "packet mode mtu"),
        ({"runtime": "docker"}, " · docker"),
        ({"topology": IMPORTED}, "notes ...) · links as the topology says · ring over tcp"),
        (
            {"workload": {"kind": "command", "argv": ["true"], "backend": "testbed"}, "collective": "tree"},
            STAR + "tree over tcp",
        ),
    ],
)
def test_what_was_run_is_said_in_a_line(keys: dict[str, Any], words: str) -> None:
    reported = setup_text(validate({"name": "x", **keys}))
    assert words in reported
    assert "\n" not in reported

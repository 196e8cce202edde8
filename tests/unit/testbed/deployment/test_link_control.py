import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.deployment.link_control import htb_attributes
from testbed.links.htb import QUANTUM_BYTES, Shaper
from testbed.system.netlink import TCA_HTB_PARMS, TCA_HTB_RATE64, TCA_KIND, TCA_OPTIONS, TICK_S, attributes


@given(st.floats(1e6, 100e9))
def test_the_message_says_what_the_shaper_says(rate_bps: float) -> None:
    shaper = Shaper.of(interface="w0-eth0", rate_bps=rate_bps, queue_bytes=100_000)
    reported = dict(attributes(htb_attributes(shaper), 0))
    assert reported[TCA_KIND] == b"htb\0"
    options = dict(attributes(reported[TCA_OPTIONS], 0))
    (rate_bytes,) = struct.unpack("=Q", options[TCA_HTB_RATE64])
    assert rate_bytes * 8 == pytest.approx(rate_bps, abs=4)
    burst, cburst, quantum, _, _ = struct.unpack_from("=IIIII", options[TCA_HTB_PARMS], 24)
    assert burst == cburst
    # Never less than what was requested, and less than a tick more.
    assert 0 <= burst * TICK_S * rate_bytes - shaper.burst_bytes < TICK_S * rate_bytes + 1
    assert quantum == QUANTUM_BYTES

"""Rates are those of the network, whoever was kept from reading or sending."""

import ctypes

from hypothesis import given
from hypothesis import strategies as st

from transports.channels._udp.native import Delivery, Meter, library

MIN_INTERVAL_S, QUEUE_S = (ctypes.c_double.in_dll(library(), name).value for name in ("MIN_INTERVAL_S", "QUEUE_S"))
TICKS = 2**32
NONE = -1.0
"""As a rate."""


def said(
    meter: Meter,
    arrived_s: float,
    sent_s: float,
    delivered_bytes: int,
    train_bytes: int = 1448,
    *,
    app_limited: bool = False,
) -> Delivery:
    ticks = round(arrived_s * 1e6) % TICKS
    found = library().meter_on_acknowledged(
        ctypes.byref(meter), ticks, sent_s, delivered_bytes, train_bytes, app_limited, 1e-4
    )
    assert isinstance(found, Delivery)
    return found


@given(offset_s=st.floats(0, 5000), every=st.integers(1, 30), rate_bps=st.sampled_from([1e7, 1e9]))
def test_a_steady_stream_has_its_rate_whatever_the_receivers_clock_shows(
    offset_s: float, every: int, rate_bps: float
) -> None:
    meter, spacing_s = Meter(), 1448 * 8 / rate_bps
    found = [
        said(meter, offset_s + index * spacing_s, index * spacing_s, index * 1448).rate_bps
        for index in range(0, 3000, every)
    ]
    rates_bps = [each for each in found if each >= 0]
    assert rates_bps
    assert all(abs(each / rate_bps - 1) < 0.01 for each in rates_bps)


def test_packets_that_were_delayed_and_come_at_once_feign_no_speed() -> None:
    meter, rates_bps = Meter(), []
    for index in range(2000):
        sent_s = index * 1e-4
        arrived_s = max(sent_s, 0.12) if sent_s > 0.1 else sent_s  # nothing comes through for 20 ms
        rates_bps.append(said(meter, arrived_s, sent_s, index * 1448).rate_bps)
    assert max(rates_bps) < 1.01 * 1448 * 8 / 1e-4


def test_a_long_train_after_a_short_one_feigns_no_speed() -> None:
    meter, now_s, delivered_bytes, rates_bps = Meter(), 0.0, 0, []
    for index in range(500):
        train_bytes = 64_000 if index % 2 else 1448
        delivered_bytes += train_bytes
        now_s += train_bytes * 8 / 1e9
        rates_bps.append(said(meter, now_s, now_s, delivered_bytes, train_bytes).rate_bps)
    assert 0.9e9 < max(rates_bps) < 1.001e9


def test_the_network_is_busy_where_packets_wait_in_a_queue_and_none_came_after_a_rest() -> None:
    meter = Meter()
    assert said(meter, 0.001, 0.0, 0).busy_s == 0
    assert said(meter, 0.010, 0.009, 10_000).queue_s < 1e-6
    assert said(meter, 0.020, 0.0189 - QUEUE_S, 20_000).busy_s == 0
    found = said(meter, 0.021, 0.0195 - QUEUE_S, 30_000)
    assert abs(found.busy_s - 0.001) < 1e-6
    assert abs(found.queue_s - QUEUE_S - 0.0005) < 1e-6
    assert said(meter, 0.022, 0.020 - QUEUE_S, 40_000, app_limited=True).busy_s == 0


def test_a_packet_that_was_overtaken_says_nothing() -> None:
    meter = Meter()
    said(meter, 1.0, 0.0, 0)
    said(meter, 1.0 + MIN_INTERVAL_S, MIN_INTERVAL_S, 100_000)
    assert said(meter, 1.0, 0.0, 200_000).rate_bps == NONE

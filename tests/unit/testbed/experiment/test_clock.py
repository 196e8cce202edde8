from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from testbed.calibration.tolerances import RateMeasurement
from testbed.experiment.clock import Clock, quantity_of
from testbed.experiment.link import UNSHAPED_BPS

times = st.floats(1e-9, 1e9)
factors = st.floats(1, 600)


class Link(BaseModel):
    rate_bps: float
    delay_s: float
    queue_bytes: int = 1000
    loss: float = 0.1


@dataclass(frozen=True)
class Whole:
    links: tuple[Link, ...]
    by_name: dict[str, Link]
    jitter_ns: float
    when_s: float | None
    number: int = 7


@dataclass(frozen=True)
class Series:
    attempts_bps: tuple[float, ...]
    delays_s: list[float]
    by_host_s: dict[str, float]
    windows_s: tuple[tuple[float, float], ...]
    links_s: tuple[Link, ...]
    shares: tuple[float, ...]
    sizes_bytes: tuple[int, ...]


@given(times, factors)
def test_virtual_is_what_it_was_after_being_real(value: float, factor: float) -> None:
    clock = Clock(factor)
    assert clock.virtual_s(clock.real_s(value)) == pytest.approx(value)
    assert clock.virtual_bps(clock.real_bps(value)) == pytest.approx(value)


@given(times, times, factors)
def test_a_product_of_a_rate_and_a_time_is_the_same_bytes(rate_bps: float, time_s: float, factor: float) -> None:
    clock = Clock(factor)
    assert clock.real_bps(rate_bps) * clock.real_s(time_s) == pytest.approx(rate_bps * time_s)


def test_every_time_and_rate_in_a_tree_and_nothing_else() -> None:
    link = Link(rate_bps=8e9, delay_s=1e-3)
    whole = Whole(links=(link,), by_name={"w0": link}, jitter_ns=5.0, when_s=None)
    real = Clock(4).real(whole)
    slow = Link(rate_bps=2e9, delay_s=4e-3)
    assert real == Whole(links=(slow,), by_name={"w0": slow}, jitter_ns=20.0, when_s=None)
    assert Clock(4).virtual(real) == whole
    assert Clock().real(whole) == whole


def test_of_a_field_with_several_numbers_each_has_its_unit() -> None:
    real = Series(
        attempts_bps=(1e9, 0.9e9, UNSHAPED_BPS),
        delays_s=[8.0, 4.0],
        by_host_s={"w0": 2.0},
        windows_s=((0.0, 4.0), (4.0, 6.0)),
        links_s=(Link(rate_bps=1e9, delay_s=4.0),),
        shares=(0.1, 0.2),
        sizes_bytes=(100, 200),
    )
    virtual = Series(
        attempts_bps=(2e9, 1.8e9, UNSHAPED_BPS),
        delays_s=[4.0, 2.0],
        by_host_s={"w0": 1.0},
        windows_s=((0.0, 2.0), (2.0, 3.0)),
        links_s=(Link(rate_bps=2e9, delay_s=2.0),),
        shares=(0.1, 0.2),
        sizes_bytes=(100, 200),
    )
    assert Clock(2).virtual(real) == virtual
    assert Clock(2).real(virtual) == real


def test_every_attempt_of_a_measured_rate_is_virtual_beside_the_one_that_stands() -> None:
    measured = RateMeasurement(goodput_bps=1e9, congestion="cubic", attempts_bps=(1e9, 0.9e9))
    virtual = Clock(88).virtual(measured)
    assert virtual.goodput_bps == pytest.approx(88e9)
    assert virtual.attempts_bps == pytest.approx((88e9, 79.2e9))


def test_what_hosts_spend_is_as_much_in_virtual_time_where_they_are_as_slow_as_this_machine() -> None:
    assert Clock(4).of_hosts("faster").virtual_s(0.02) == pytest.approx(0.005)
    assert Clock(4).of_hosts("real").virtual_s(0.02) == 0.02


def test_a_link_as_fast_as_the_machine_is_so_in_any_time() -> None:
    assert Clock(50).real(Link(rate_bps=UNSHAPED_BPS, delay_s=0)).rate_bps == UNSHAPED_BPS


def test_units_are_distinguished_from_names() -> None:
    assert [quantity_of(name) for name in ("delay_s", "jitter_ns", "rate_bps")] == ["time", "time", "rate"]
    assert [quantity_of(name) for name in ("queue_bytes", "loss", "packets", "samples_per_second")] == [None] * 4

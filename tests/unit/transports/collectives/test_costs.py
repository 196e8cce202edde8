"""A channel's own costs stand for TCP's, and for nobody else's."""

from dataclasses import replace

from transports.collectives.costs import ChannelCosts, Costs

QUIC = ChannelCosts(channel="quic", message_s=4e-4, copy_s_per_byte=5e-8)
FITTED = Costs(message_s=4e-5, copy_s_per_byte=6e-10, num_cores=2, fitted_at="now", channels=(QUIC,))


def test_a_channel_that_was_measured_has_its_own_costs() -> None:
    assert FITTED.of_channel("quic") == replace(FITTED, message_s=4e-4, copy_s_per_byte=5e-8, channels=())


def test_any_other_costs_what_tcp_does() -> None:
    for kind in ("tcp", "udp"):
        assert FITTED.of_channel(kind) == replace(FITTED, channels=())
    assert FITTED.of_channel("quic").of_channel("quic") == FITTED.of_channel("quic"), "once is enough"

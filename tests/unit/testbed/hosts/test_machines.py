"""Which of several measurements of the network between two machines stands."""

from testbed.hosts.machines import standing_rates_bps

NEEDED_BPS = [100.0, 50.0]


def test_rates_that_suffice_are_measured_once() -> None:
    measured = iter([[100.0, 50.0]])
    assert standing_rates_bps(lambda: next(measured), NEEDED_BPS) == [100.0, 50.0]


def test_of_rates_that_are_too_low_the_middle_stands_and_never_the_highest() -> None:
    """What had waited for a reader that did not run came at once, and looked like a faster network."""
    measured = iter([[98.0, 60.0], [102.0, 60.0], [98.0, 49.0], [97.0, 60.0], [98.5, 60.0]])
    assert standing_rates_bps(lambda: next(measured), NEEDED_BPS) == [98.0, 60.0]
    disturbed = iter([[60.0, 60.0], [101.0, 60.0], [101.0, 60.0], [70.0, 60.0], [101.0, 60.0]])
    assert standing_rates_bps(lambda: next(disturbed), NEEDED_BPS) == [101.0, 60.0]

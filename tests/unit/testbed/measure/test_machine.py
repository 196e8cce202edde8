"""The kernel's own files, read as documented."""

from testbed.measure.machine import MachineSample, parse_softnet, parse_stat

STAT = (
    "cpu  10 1 20 300 5 2 3 7 4 0\ncpu0 5 0 10 150 2 1 1 3 2 0\ncpu1 5 1 10 150 3 1 2 4 2 0\nintr 9 9 9\n"
    "cpu10 70 0 0 0 0 0 0 0 0 0\n"
)
SOFTNET = "0000aaaa 00000002 0000000f 00000000\n00000001 00000001 00000001 00000000\n"


def test_ticks_leave_out_guests_which_count_as_users() -> None:
    assert parse_stat(STAT, {0, 1}) == {"ticks": 348, "program_ticks": 31, "idle_ticks": 305, "steal_ticks": 7}


def test_ticks_are_those_of_the_cores_that_the_run_may_use() -> None:
    assert parse_stat(STAT, {0}) == {"ticks": 172, "program_ticks": 15, "idle_ticks": 152, "steal_ticks": 3}
    assert parse_stat(STAT, {10})["ticks"] == 70


def test_softnet_sums_over_cores() -> None:
    assert parse_softnet(SOFTNET) == {"softnet_drops": 3, "softnet_squeezes": 16}


def test_shares_between_two_samples_of_this_machine() -> None:
    before = MachineSample.take()
    sum(range(3_000_000))
    after = MachineSample.take()
    assert after.at_s > before.at_s
    assert 0 <= after.steal_share_since(before) <= 1
    assert 0 <= after.busy_share_since(before) <= 1

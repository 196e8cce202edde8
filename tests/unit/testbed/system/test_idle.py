"""How deep cores may sleep while a run goes on."""

from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError
from testbed.system.environment import is_virtual
from testbed.system.idle import REQUESTS, bearable_us, shallow_sleep, wake_up_limit_us


def test_a_virtual_machine_s_cores_do_not_sleep_and_others_do_in_their_shallowest_state(tmp_path: Path) -> None:
    shallowest = tmp_path / "latency"
    assert bearable_us(virtual=False, shallowest=shallowest) == 0, "no states that the kernel knows of"
    for said, bearable in (("2\n", 2), ("0\n", 1)):
        shallowest.write_text(said)
        assert bearable_us(virtual=False, shallowest=shallowest) == bearable
        assert bearable_us(virtual=True, shallowest=shallowest) == 0


def test_where_nobody_can_ask_a_run_goes_on(tmp_path: Path) -> None:
    assert wake_up_limit_us(tmp_path / "none") is None
    with shallow_sleep(tmp_path / "none"):
        assert not list(tmp_path.iterdir())


def test_a_request_that_is_taken_and_not_done_is_refused() -> None:
    expected = "/dev/null: cores may take None us to wake up"
    with pytest.raises(MissingRequirementError, match=expected), shallow_sleep(Path("/dev/null")):
        pytest.fail("not refused")


@pytest.mark.privileged
def test_the_kernel_says_so_while_it_lasts() -> None:
    """What other runs ask for counts as well, so that a limit may be low before and after."""

    def requests() -> int:
        return sum(each.is_symlink() and each.readlink() == REQUESTS for each in Path("/proc/self/fd").iterdir())

    limit_us, before = bearable_us(virtual=is_virtual()), requests()
    with shallow_sleep():
        assert wake_up_limit_us() in range(limit_us + 1)
        with shallow_sleep():
            assert requests() == before + 2, "each run has one of its own"
        assert wake_up_limit_us() in range(limit_us + 1)
    assert requests() == before

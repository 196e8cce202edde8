"""Two of the faults that `make test-faults` plants: what nothing but a look during the run can find."""

from pathlib import Path

import pytest

from tests.sabotage.faults import FAULTS
from tests.sabotage.test_sabotage import plant

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    "name", ["buffers of TCP made small and put back", pytest.param("aggregator stopped", marks=pytest.mark.slow)]
)
def test_a_fault_that_is_over_before_the_end_is_named(name: str, tmp_path: Path) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    plant(fault, tmp_path, seed=1)

"""Fifty times, or KILLS, kill -9 of any process of a run at any moment, by seed: `make test-crashes`, minutes."""

import os
from pathlib import Path
from typing import Final

import pytest

from tests.bystanders import assert_unharmed, standing_by
from tests.random_kills import kill_one, whole_run_s

NUM_KILLS: Final = int(os.environ.get("KILLS", "50"))


@pytest.fixture(scope="module")
def duration_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    return whole_run_s(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("seed", range(NUM_KILLS))
def test_a_process_is_killed_and_cleaning_leaves_nothing(tmp_path: Path, duration_s: float, seed: int) -> None:
    with standing_by() as bystanders:
        kill_one(tmp_path, seed, duration_s)
        assert_unharmed(bystanders)

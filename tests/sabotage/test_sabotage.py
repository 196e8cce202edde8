"""Faults planted in a running experiment: none may leave a valid verdict, each must be named. `make test-faults`.

FAULT_REPEATS is how often each is planted, by a seed of its own. On a machine that does nothing else, which is what a
run that nobody touches is valid on.
"""

import os
import random
import re
from pathlib import Path

import pytest

from testbed.hosts.clean import leftovers
from tests.sabotage.faults import FAULTS, Fault
from tests.sabotage.victim import Victim

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(240)]

REPEATS = int(os.environ.get("FAULT_REPEATS", "1"))


def plant(fault: Fault, directory: Path, seed: int) -> None:
    draw = random.Random(f"{fault.name} {seed}")
    victim = Victim(directory, fault.overrides, wrapper=fault.wrapper)
    if victim.run_id is not None:
        victim.wait_for(*fault.phases)
        fault.plant(victim, draw)
    ended = victim.ended()
    found = f"{fault.name}, seed {seed}: {ended.outcome}\n{ended.text}"
    assert ended.outcome in fault.outcomes, found
    assert re.search(fault.named_cause, ended.text), found
    assert "Traceback" not in ended.errors, found
    assert victim.run_id is None or leftovers(victim.run_id) == [], found


@pytest.mark.parametrize("seed", range(REPEATS))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_never_silent_and_its_named_cause_is_named(fault: Fault, seed: int, tmp_path: Path) -> None:
    plant(fault, tmp_path, seed)


@pytest.mark.parametrize("seed", range(REPEATS))
def test_a_run_that_nobody_touches_is_valid_without_a_word(seed: int, tmp_path: Path) -> None:
    ended = Victim(tmp_path).ended()
    assert (ended.outcome, ended.summary["reasons"]) == ("valid", []), f"seed {seed}: {ended.text}"

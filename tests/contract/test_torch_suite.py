"""A sample of torch's own distributed tests on the backend, and of random programs; `make test-torch` runs all."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.random_programs.compared import compare
from tests.random_programs.programs import Message, Program, programs
from tests.random_programs.ranks import Worlds, comparable
from tests.torch_suite.cases import Backend, Result, Status
from tests.torch_suite.differences import Difference, expected, sample, table, unexpected

ROOT = Path(__file__).parents[2]
NUM_PROGRAMS = 60


@pytest.mark.timeout(
    900
)  # sixty tests of up to four processes each: half a minute, on a machine with nothing else to do
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_sample_of_torch_s_own_tests_passes(world_size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch_suite", "--sample", "--world-sizes", str(world_size), "--jobs", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(sample(world_size))} results, 0 not as expected" in done.stderr
    assert len(sample(world_size)) >= 60


@pytest.mark.timeout(900)  # as above
def test_random_programs_end_as_with_gloo() -> None:
    with Worlds() as worlds:

        @seed(2026)
        @settings(max_examples=NUM_PROGRAMS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(programs())
        def run(program: Program) -> None:
            compare(worlds, program)

        run()


# What the samples stand on.


def result(test: str, backend: Backend, status: Status) -> Result:
    return Result(test=test, world_size=2, backend=backend, guise="gloo", status=status, detail="why", duration_s=0.1)


def pair(gloo: Status, testbed: Status) -> list[Result]:
    return [result("test_one", "gloo", gloo), result("test_one", "testbed", testbed)]


LISTED = [Difference(test="test_one", world_sizes=(2,), reason="gloo's name")]


def test_a_difference_must_be_listed_and_what_is_listed_must_differ() -> None:
    assert unexpected(pair("passed", "passed"), []) == []
    assert unexpected(pair("failed", "failed"), []) == []
    assert unexpected(pair("failed", "passed"), []) == []
    assert "failed with testbed" in unexpected(pair("passed", "failed"), [])[0]
    assert "skipped with testbed" in unexpected(pair("passed", "skipped"), [])[0]
    assert "not given with gloo, passed with testbed" in unexpected(pair("not given", "passed"), [])[0]
    assert unexpected(pair("passed", "failed"), LISTED) == []
    assert "is listed as one that does not" in unexpected(pair("passed", "passed"), LISTED)[0]


def test_the_table_counts_and_gives_reasons() -> None:
    written = table(pair("passed", "failed"), LISTED)
    assert "| 2 | gloo | 1 | 0 | 0 | 0 |" in written
    assert "| 2 | `test_one` | passed | failed | gloo's name |" in written
    assert "**not listed**" in table(pair("passed", "failed"), [])


def test_everything_listed_is_described_in_the_docs() -> None:
    page = (ROOT / "docs" / "torch_suite.md").read_text()
    for difference in expected():
        assert difference.reason
        assert f"`{difference.test}`" in page


@settings(max_examples=100)
@given(programs())
def test_programs_are_legal(program: Program) -> None:
    """Whatever is begun is awaited, and a machine that buffers nothing ends."""
    begun: list[set[int]] = [set() for _ in range(program.world_size)]
    left = [list(actions) for actions in program.actions]
    progressed = True
    while progressed:
        progressed = False
        for rank, actions in enumerate(left):
            if not actions:
                continue
            action = actions[0]
            begun[rank] |= set(action.operations)
            if action.verb in ("begin", "batch") or _complete(program, action.operations[0], begun):
                actions.pop(0)
                progressed = True
    assert not any(left)
    for rank, own_actions in enumerate(program.actions):
        ended = [number for action in own_actions if action.verb in ("call", "wait") for number in action.operations]
        own = [number for number in range(len(program.operations)) if rank in _participants(program, number)]
        assert sorted(ended) == own


def _participants(program: Program, number: int) -> tuple[int, ...]:
    operation = program.operations[number]
    return (operation.source, operation.destination) if isinstance(operation, Message) else operation.members


def _complete(program: Program, number: int, begun: list[set[int]]) -> bool:
    operation = program.operations[number]
    if not (isinstance(operation, Message) and operation.any_source):
        return all(number in begun[rank] for rank in _participants(program, number))
    # The n-th receive begun gets any of the messages begun; a message is gone when as many receives are begun.
    same = {each for each, other in enumerate(program.operations) if _is_like(operation, other)}
    num_received = len(same & begun[operation.destination])
    num_sent = sum(1 for each in same if each in begun[_participants(program, each)[0]])
    return min(num_received, num_sent) >= 1


def _is_like(message: Message, other: object) -> bool:
    return isinstance(other, Message) and (other.destination, other.tag) == (message.destination, message.tag)


def test_receives_from_any_source_are_compared_as_a_set() -> None:
    first = Message(
        members=(0, 1, 2),
        source=1,
        destination=0,
        tag=100,
        dtype="int32",
        length=1,
        room=1,
        any_source=True,
        seed=1,
    )
    operations = (first, replace(first, source=2, seed=2))
    program = Program(world_size=3, operations=operations, actions=((), (), ()))
    one, other = [(0, (1, [5])), (1, (2, [6]))], [(0, (2, [6])), (1, (1, [5]))]
    assert comparable(program, 0, one) == comparable(program, 0, other)
    assert comparable(program, 0, one) != comparable(program, 0, [(0, (1, [6])), (1, (2, [5]))])

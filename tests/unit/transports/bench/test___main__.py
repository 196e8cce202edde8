import json
import os
import subprocess
import sys

import pytest

from tests.here import invoke
from tests.loopback import free_port
from tests.ranks import ADDRESS, Rank, run_ranks
from transports.bench.__main__ import counts_of, main, parse_stacks, racks_of, require_launched
from transports.bench.rows import wire_bytes_per_rank
from transports.errors import OptionError, UnsupportedError


def test_every_rank_has_as_many_elements() -> None:
    assert counts_of([4, 16, 20, 64], dtype="float32", num_workers=4) == [4, 8, 16]
    assert counts_of([4], dtype="float64", num_workers=3) == [3]


def test_a_compression_beside_the_stacks_is_timed_next_to_none() -> None:
    stacks = parse_stacks("ring/tcp,gloo", "fp16", operation="all_reduce", dtype="float32")
    assert list(stacks) == ["ring/tcp", "gloo", "ring/tcp/fp16"]


@pytest.mark.parametrize(
    ("text", "operation", "dtype", "what"),
    [
        ("ring/memory", "all_reduce", "float32", "one process"),
        ("parameter_server:placement=dedicated/tcp", "all_reduce", "float32", "dedicated servers"),
        ("ring/tcp/fp16", "broadcast", "float32", "not broadcast"),
        ("ring/tcp/fp16", "all_reduce", "int32", "of int32"),
    ],
)
def test_stacks_that_cannot_be_timed_are_refused(text: str, operation, dtype: str, what: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OptionError, match=what):
        parse_stacks(text, None, operation=operation, dtype=dtype)


def test_without_a_launcher_the_fix_is_named() -> None:
    with pytest.raises(
        UnsupportedError, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set: start with `torchrun"
    ):
        require_launched({})
    require_launched(dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "1"))


def words_of(operation: str) -> list[str]:
    words = ["--operation", operation, "--sizes", "4B,64KiB", "--stack", "ring/tcp,gloo"]
    words += ["--warmup", "1", "--iterations", "2", "--rate", "1gbit", "--json"]
    return words + ["--compression", "fp16"] * (operation == "all_reduce")


def check(printed: str, operation: str) -> None:
    rows = json.loads(printed)["rows"]
    names = ["ring/tcp", "gloo"] + ["ring/tcp/fp16"] * (operation == "all_reduce")
    assert [(row["stack"], row["size_bytes"]) for row in rows] == [
        (name, size) for size in (8, 65536) for name in names
    ]
    for row in rows:
        assert row["busbw_bps"] == pytest.approx(row["algbw_bps"] * (1.0 if operation == "all_reduce" else 0.5))
        assert (row["wire_bytes_per_rank"] is None) == (row["stack"] == "gloo")


def test_two_ranks_under_torchrun() -> None:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    argv += ["--nproc-per-node", "2", "-m", "transports.bench", *words_of("all_reduce")]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=90, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout, "all_reduce")


def launched(rank: Rank, port: int, words: list[str]) -> str:
    """What a rank prints that has been started as torchrun starts it."""
    os.environ |= {"RANK": str(rank.rank), "WORLD_SIZE": str(rank.size)}
    os.environ |= {"MASTER_ADDR": ADDRESS, "MASTER_PORT": str(port)}
    done = invoke(*words, script=main)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("operation", ["all_to_all", "gather"])
def test_two_ranks_time_other_operations(operation: str) -> None:
    first, other = run_ranks(launched, 2, free_port(), words_of(operation))
    check(first.value, operation)
    assert other.value == ""


def test_what_goes_by_racks_is_timed_with_them_and_not_without() -> None:
    stacks = parse_stacks("hierarchical/tcp,ring/tcp", None, operation="all_reduce", dtype="float32")
    four = {"WORLD_SIZE": "4"}
    with pytest.raises(OptionError, match=r"'hierarchical/tcp' goes by racks: set TESTBED_RACKS"):
        racks_of(stacks, four)
    with pytest.raises(OptionError, match="TESTBED_RACKS: 2 numbers for 4 ranks"):
        racks_of(stacks, {**four, "TESTBED_RACKS": "0,1"})
    assert racks_of(stacks, {**four, "TESTBED_RACKS": "0,0,1,1"}) == (0, 0, 1, 1)
    assert racks_of({"ring/tcp": stacks["ring/tcp"]}, four) == ()


def test_four_ranks_in_two_racks_move_what_the_schedule_of_racks_moves() -> None:
    words = ["--sizes", "64KiB", "--stack", "hierarchical/tcp", "--warmup", "1", "--iterations", "2", "--json"]
    first, *_ = run_ranks(launched_in_racks, 4, free_port(), words)
    (row,) = json.loads(first.value)["rows"]
    by_racks, in_one = (
        wire_bytes_per_rank(
            "hierarchical/tcp", "all_reduce", num_workers=4, num_elements=16384, dtype="float32", racks=racks
        )
        for racks in ((0, 0, 1, 1), ())
    )
    assert row["wire_bytes_per_rank"] == by_racks != in_one


def launched_in_racks(rank: Rank, port: int, words: list[str]) -> str:
    os.environ["TESTBED_RACKS"] = "0,0,1,1"
    return launched(rank, port, words)

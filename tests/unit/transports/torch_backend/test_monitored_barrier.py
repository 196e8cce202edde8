"""A barrier over a store: ranks are threads here, for the store is all that they share."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from torch._C._distributed_c10d import FileStore, HashStore, Store, TCPStore

from transports.torch_backend.monitored_barrier import MonitoredBarrier

LONG_S = 30.0
SHORT_S = 0.2


def meet(barriers: Mapping[int, MonitoredBarrier], timeouts_s: Mapping[int, float], **options: bool) -> dict[int, str]:
    """What each rank ended with: an empty string, or its error."""
    ended: dict[int, str] = {}

    def come(rank: int) -> None:
        try:
            barriers[rank].wait(timeouts_s[rank], **options)
            ended[rank] = ""
        except RuntimeError as error:
            ended[rank] = str(error)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in timeouts_s]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def barriers_of(store: Store, size: int, number: int = 1) -> dict[int, MonitoredBarrier]:
    return {rank: MonitoredBarrier(store, rank, size, LONG_S, number=number) for rank in range(size)}


@pytest.fixture(params=["hash", "file", "tcp"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "hash":
        return HashStore()
    if request.param == "file":
        return FileStore(str(tmp_path / "store"), -1)
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_everybody_passes_when_everybody_has_come(store: Store, size: int) -> None:
    barriers = barriers_of(store, size)
    for _ in range(3):
        assert meet(barriers, dict.fromkeys(range(size), LONG_S)) == dict.fromkeys(range(size), "")


def test_a_group_made_anew_over_the_same_store_waits_for_everybody(store: Store) -> None:
    barriers = barriers_of(store, 2)
    assert meet(barriers, dict.fromkeys(range(2), LONG_S)) == {0: "", 1: ""}
    again = barriers_of(store, 2, number=2)
    assert "Rank 0 failed to pass" in meet(again, {1: SHORT_S})[1]
    for number in (3, 4):
        again = barriers_of(store, 2, number=number)
        assert meet(again, dict.fromkeys(range(2), LONG_S)) == {0: "", 1: ""}


def test_the_first_that_is_missing_is_named_and_the_others_say_that_they_came(store: Store) -> None:
    barriers = barriers_of(store, 5)
    ended = meet(barriers, {0: SHORT_S, 1: LONG_S, 3: LONG_S})
    assert ended[0] == "Rank 2 failed to pass monitoredBarrier in 200 ms"
    for rank in (1, 3):
        assert ended[rank].startswith(f"Rank {rank} successfully reached monitoredBarrier, but received errors")
        assert "Rank 2 failed" in ended[rank]


def test_all_that_are_missing_are_named_when_that_is_requested() -> None:
    barriers = barriers_of(HashStore(), 5)
    assert meet(barriers, {0: SHORT_S, 3: LONG_S}, wait_all_ranks=True)[0].startswith("Ranks 1, 2, 4 failed")


def test_without_rank_0_the_others_name_it() -> None:
    ended = meet(barriers_of(HashStore(), 3), {1: SHORT_S, 2: SHORT_S})
    assert all("Rank 0 failed to pass monitoredBarrier" in error for error in ended.values())


def test_one_that_comes_late_is_reported_and_the_next_barrier_is_everybodys() -> None:
    barriers = barriers_of(HashStore(), 3)
    meet(barriers, {0: SHORT_S, 2: SHORT_S})
    assert meet(barriers, {1: LONG_S})[1].startswith("Rank 1 failed to pass")
    assert meet(barriers, dict.fromkeys(range(3), LONG_S)) == {0: "", 1: "", 2: ""}


def test_a_rank_that_gave_up_is_not_passed_by_the_others() -> None:
    """Rank 1 has come and gone when rank 0 comes: both fail, or one would go on alone."""
    barriers = barriers_of(HashStore(), 2)
    assert meet(barriers, {1: SHORT_S})[1]
    assert meet(barriers, {0: LONG_S})[0].startswith("Rank 0 failed to pass")


def test_no_time_at_all_is_an_error_at_once_that_takes_nobody_along() -> None:
    barriers = barriers_of(HashStore(), 2)
    with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier after 0 ms"):
        barriers[0].wait(0.0)
    assert meet(barriers, {0: LONG_S, 1: LONG_S}) == {0: "", 1: ""}


def test_the_group_s_timeout_counts_when_none_is_given() -> None:
    with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier in 50 ms"):
        MonitoredBarrier(HashStore(), 0, 2, 0.05).wait()


def test_what_barriers_leave_in_the_store_does_not_grow(store: Store) -> None:
    barriers = barriers_of(store, 3)
    left = []
    for _ in range(5):
        meet(barriers, dict.fromkeys(range(3), LONG_S))
        left.append(store.num_keys())
    assert left[1] >= left[-1]

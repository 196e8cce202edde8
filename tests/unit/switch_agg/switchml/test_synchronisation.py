"""Barrier and broadcast, without a network."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from switch_agg.errors import JobError, SessionEndedError
from switch_agg.switchml.synchronisation import Barrier, Broadcast


async def started(*waiting: Coroutine[Any, Any, Any]) -> list["asyncio.Task[Any]"]:
    """Calls that have come as far as they get."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


def test_a_barrier_lets_go_when_all_are_there_again_and_again() -> None:
    async def play() -> None:
        barrier = Barrier()
        for _ in range(3):
            tasks = await started(barrier.wait(3), barrier.wait(3))
            assert (barrier.num_waiting, [task.done() for task in tasks]) == (2, [False, False])
            await barrier.wait(3)
            await asyncio.gather(*tasks)
            assert barrier.num_waiting == 0
        await barrier.wait(1)

    asyncio.run(play())


def test_whoever_goes_away_at_a_barrier_is_not_counted() -> None:
    """The original counts it, and lets the next ones go too early."""

    async def play() -> None:
        barrier = Barrier()
        gone, stays = await started(barrier.wait(3), barrier.wait(3))
        gone.cancel()
        [late] = await started(barrier.wait(3))
        assert barrier.num_waiting == 2
        assert not stays.done()
        await barrier.wait(3)
        await asyncio.gather(stays, late)

    asyncio.run(play())


def test_who_waits_at_a_barrier_can_be_sent_away_and_says_the_same_number() -> None:
    async def play() -> None:
        barrier = Barrier()
        tasks = await started(barrier.wait(2))
        for number, words in ((3, "those who wait at this barrier said 2, not 3"), (0, "1 to 32"), (33, "1 to 32")):
            with pytest.raises(JobError, match=words):
                await barrier.wait(number)
        barrier.send_away("another session")
        with pytest.raises(SessionEndedError, match="another session"):
            await tasks[0]
        assert barrier.num_waiting == 0

    asyncio.run(play())


def say(
    broadcast: Broadcast, rank: int, value: int = 0, *, num_workers: int = 3, root: int = 0, caller: str = ""
) -> Any:
    return broadcast.exchange(caller or f"c{rank}", rank=rank, root=root, num_workers=num_workers, value=value)


def test_every_rank_gets_the_root_s_value_before_or_after_it() -> None:
    async def play() -> None:
        broadcast = Broadcast()
        for value in (7, 2**64 - 1, 0):
            tasks = await started(say(broadcast, 2))
            assert not tasks[0].done()
            assert await say(broadcast, 0, value) == value
            assert await tasks[0] == value
            tasks = await started(say(broadcast, 2))  # for the next one
            assert await say(broadcast, 1) == value
            assert not tasks[0].done()
            tasks[0].cancel()
            await asyncio.sleep(0)
            assert broadcast.num_waiting == 0

    asyncio.run(play())


def test_a_value_that_nobody_is_to_have_any_more_is_forgotten() -> None:
    """Rank 0 was ended while it waited for rank 1, who starts first next time: the original gives it the old number."""

    async def play() -> None:
        broadcast = Broadcast()
        await say(broadcast, 0, 7, num_workers=2, caller="old")
        broadcast.forget("old")
        tasks = await started(say(broadcast, 1, num_workers=2))
        assert not tasks[0].done()
        await say(broadcast, 0, 8, num_workers=2, caller="new")
        assert await tasks[0] == 8

        await say(broadcast, 0, 9, num_workers=2, caller="new")
        await say(broadcast, 0, 10, num_workers=2, caller="newer")  # nobody took the one before
        assert await say(broadcast, 1, num_workers=2) == 10

    asyncio.run(play())


def test_ranks_that_cannot_be_are_refused() -> None:
    async def play() -> None:
        broadcast = Broadcast()
        for call, words in (
            (say(broadcast, 3), r"rank: 0 to 2, of 3 workers \(got 3\)"),
            (say(broadcast, 1, root=5), r"root: 0 to 2, of 3 workers \(got 5\)"),
            (say(broadcast, 0, num_workers=0), "num_workers: 1 to 32"),
        ):
            with pytest.raises(JobError, match=words):
                await call
        tasks = await started(say(broadcast, 1, caller="10.0.0.1"), say(broadcast, 2, num_workers=4))
        tasks += await started(say(broadcast, 1, caller="10.0.0.2"))
        with pytest.raises(
            JobError, match=r"another client of rank 1 has come, from 10\.0\.0\.2; each client has a rank"
        ):
            await tasks[0]
        assert await say(broadcast, 0, 5) == 5
        assert await tasks[2] == 5
        with pytest.raises(JobError, match="num_workers: rank 2 says 4, rank 0 said 3"):
            await tasks[1]
        with pytest.raises(JobError, match="root: rank 2 says 1, rank 0 said 0"):
            await say(broadcast, 2, root=1)

    asyncio.run(play())

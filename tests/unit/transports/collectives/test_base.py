from transports.collectives.base import Chunk, Step, relocated


def test_a_schedule_is_moved_with_all_that_it_names() -> None:
    """Only the caller's buffers begin elsewhere; what a step waits for and adds moves along."""
    came, scratch = Chunk("output", 0, 4), Chunk("scratch", 0, 1)
    steps = [
        Step("send", Chunk("output", 4, 4), 1, after=(came, scratch)),
        Step("add", came, 0, source=Chunk("output", 8, 4)),
    ]
    sent, added = relocated(steps, start=100, peers=(5, 7))
    assert sent == Step("send", Chunk("output", 104, 4), 7, after=(Chunk("output", 100, 4), scratch))
    assert added == Step("add", Chunk("output", 100, 4), 5, source=Chunk("output", 108, 4))

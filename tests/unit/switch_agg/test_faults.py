from switch_agg.faults import Fate, FaultInjector, FaultRates, Faults, ListedFault, corrupt, first_state, xorshift64star


def test_the_same_seed_meets_the_same_fate_whatever_others_do() -> None:
    faults = Faults(seed=3, up=FaultRates(loss=0.1, duplicate=0.1, reorder=0.1, corrupt=0.1))
    alone = FaultInjector(faults)
    crowded = FaultInjector(faults)
    fates = []
    for chunk in range(500):
        fates.append(alone.fate("up", 0, chunk))
        crowded.fate("up", 1, chunk)
        crowded.fate("down", 0, chunk)
        assert crowded.fate("up", 0, chunk) == fates[-1]
    assert 30 < sum(fate.copies == 0 for fate in fates) < 75
    assert 30 < sum(fate.copies == 2 for fate in fates) < 75
    assert 30 < sum(fate.held for fate in fates) < 75
    assert 30 < sum(fate.corrupt_bit is not None for fate in fates) < 75
    assert all(alone.fate("down", 0, chunk) == Fate() for chunk in range(50))


def test_listed_faults_meet_exactly_their_datagram() -> None:
    listed = ListedFault(direction="up", worker=1, chunk=5, occurrence=2)
    injector = FaultInjector(Faults(listed=(listed,)))
    assert injector.fate("up", 1, 5) == Fate()
    assert injector.fate("up", 0, 5) == Fate()
    assert injector.fate("up", 1, 5) == Fate(copies=0)
    assert injector.fate("up", 1, 5) == Fate()


def test_numbers_are_those_of_the_paper() -> None:
    # Vigna's reference implementation from state 1.
    number, state = xorshift64star(1)
    assert number == 0x47E4CE4B896CDD1D
    assert state == 0x2000001
    assert len({first_state(seed, d, w) for seed in range(9) for d in ("up", "down") for w in range(32)}) == 9 * 2 * 32


def test_one_bit_is_turned_over() -> None:
    assert corrupt(b"\x00\x00", 9) == b"\x00\x02"
    assert corrupt(b"\x00\x00", 25) == b"\x00\x02"

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from transports.bench.rows import (
    Sample,
    matrix_shape,
    parse_format,
    render,
    render_osu,
    schedule_bound_s,
    summarise,
    task_bound_s,
    wire_bytes_per_rank,
)
from transports.channels.tcp import Tcp
from transports.collectives.network_info import NetworkInfo
from transports.errors import OptionError

RATE_BPS = 8e6 / Tcp().goodput_fraction(1500)


def _samples() -> list[Sample]:
    durations_s = {(0, 0): 0.001, (0, 1): 0.003, (1, 0): 0.002, (1, 1): 0.002}
    return [
        Sample(
            rank=rank,
            stack="ring/tcp",
            size_bytes=1000,
            number=number,
            begun_s=10.0 + number + 0.0004 * (1 - rank),
            duration_s=seconds,
            cpu_s=1e-6,
            error=rank * 1e-8,
        )
        for (rank, number), seconds in durations_s.items()
    ]


def test_a_time_is_that_of_the_slowest_rank_and_cpu_time_that_of_all() -> None:
    (row,) = summarise(_samples(), operation="all_reduce", dtype="float32", num_workers=2, rate_bps=RATE_BPS)
    assert row["time_s"]["median"] == pytest.approx(0.0025)
    assert row["algbw_bps"] == pytest.approx(8000 / 0.0025)
    assert row["cpu_s_per_gb"] == pytest.approx(2e-6 / 2000 * 1e9)
    assert row["ratio_to_bound"] == row["ratio_to_schedule_bound"] == pytest.approx(2.5)
    assert row["relative_error"] == 1e-8
    assert "begins_s" not in row, "clocks of several machines have nothing in common"


def test_when_ranks_of_one_machine_began_is_said_of_the_operation_of_the_median_time() -> None:
    third = [replace(s, number=2, duration_s=0.0025, begun_s=20.0 + 0.001 * s.rank) for s in _samples()[::2]]
    (row,) = summarise(
        [*_samples(), *third],
        operation="all_reduce",
        dtype="float32",
        num_workers=2,
        rate_bps=RATE_BPS,
        one_clock=True,
    )
    assert row["time_s"]["median"] == pytest.approx(0.0025)
    assert row["begins_s"] == [pytest.approx([0.0, 0.001])]


def test_of_many_operations_a_typical_one_says_when_ranks_began() -> None:
    """One alone is by chance: of two ranks that began 16 or 70 us apart, predictions of half a millisecond differed by
    a tenth."""
    first, second = (next(s for s in _samples() if s.rank == rank) for rank in range(2))
    samples = []
    for number, apart_s in enumerate([16e-6, 70e-6, 60e-6, 65e-6, 20e-6, 55e-6, 0.01, 50e-6, 66e-6] * 5):
        begun_s, duration_s = 10.0 + number, 1e-3 + 1e-9 * number
        samples.append(replace(first, number=number, begun_s=begun_s, duration_s=duration_s))
        samples.append(replace(second, number=number, begun_s=begun_s + apart_s, duration_s=duration_s))
    (row,) = summarise(
        samples, operation="all_reduce", dtype="float32", num_workers=2, rate_bps=RATE_BPS, one_clock=True
    )
    assert len(row["begins_s"]) == 15
    assert row["begins_s"][0] == pytest.approx([0.0, 60e-6], abs=1e-9)
    assert {round(1e6 * begins_s[1]) for begins_s in row["begins_s"]} == {16, 70, 60, 65, 20, 55, 10_000, 50, 66}


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 1.5),
        ("reduce_scatter", 0.75),
        ("all_gather", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1),
        ("reduce", 1),
    ],
)
def test_bus_bandwidth_has_nccl_tests_factors(operation, factor: float) -> None:  # type: ignore[no-untyped-def]
    (row,) = summarise(_samples(), operation=operation, dtype="float32", num_workers=4, rate_bps=None)
    assert row["busbw_bps"] == pytest.approx(factor * row["algbw_bps"])


def test_wire_bytes_follow_the_schedule_and_the_compression() -> None:
    def of(stack: str, dtype: str = "float32") -> int | None:
        return wire_bytes_per_rank(stack, "all_reduce", num_workers=4, num_elements=2**20, dtype=dtype)

    plain, half = of("ring/tcp"), of("ring/tcp/fp16")
    assert plain == pytest.approx(1.5 * 2**22 * 1514 / 1448, rel=0.001)
    assert half == pytest.approx(plain / 2, rel=0.001)
    assert of("ring/tcp/fp16", "bfloat16") == half
    assert of("ring/tcp/divide:by=2", "bfloat16") == pytest.approx(plain / 4, rel=0.001)
    assert of("gloo") is None
    assert of("in_network/ebpf") == 4096 * 1080
    assert of("in_network:num_elements=64/reference") == 16384 * 312
    assert of("ring/tcp/threshold:threshold=0.1:error_feedback=false") is None


def test_wire_bytes_are_of_the_collective_that_ranks_choose_on_these_links() -> None:
    info = NetworkInfo(latency_s=1e-6, rate_bps=1e11)
    options: dict[str, Any] = {"num_workers": 4, "num_elements": 25_000, "dtype": "float32"}

    def chosen(network_info: NetworkInfo | None) -> int | None:
        return wire_bytes_per_rank("auto/tcp", "all_reduce", **options, network_info=network_info)

    assert chosen(info) == wire_bytes_per_rank("recursive_doubling/tcp", "all_reduce", **options)
    assert chosen(None) != chosen(info)
    samples = [replace(sample, stack="auto/tcp", size_bytes=100_000) for sample in _samples()]
    (row,) = summarise(
        samples, operation="all_reduce", dtype="float32", num_workers=4, rate_bps=None, network_info=info
    )
    assert row["wire_bytes_per_rank"] == chosen(info)


def test_what_is_no_sum_of_floats_is_the_ring_s_beside_an_aggregating_switch_too() -> None:
    options: dict[str, Any] = {"num_workers": 4, "num_elements": 2**20}
    for compression, dtype in [("/thc:register_bits=16", "float32"), ("/thc", "float32"), ("", "int32"), ("", "int16")]:
        ring, switch = (
            (
                wire_bytes_per_rank(f"{below}{compression}", "all_reduce", dtype=dtype, **options),
                schedule_bound_s(f"{below}{compression}", "all_reduce", dtype=dtype, rate_bps=1e8, mtu=1500, **options),
            )
            for below in ("ring/tcp", "in_network/ebpf")
        )
        assert ring == switch


def test_a_narrow_terminal_shows_whole_words_of_the_columns_that_matter() -> None:
    rows = summarise(_samples(), operation="all_reduce", dtype="float32", num_workers=2, rate_bps=RATE_BPS)
    out = io.StringIO()
    render(rows, Console(file=out, width=80))
    heading, first = out.getvalue().splitlines()[1:3]
    assert heading.split() == ["size", "stack", "time", "algbw", "busbw", "of", "bound", "CPU", "s/GB"]
    assert "\u2026" not in first


def test_each_stack_has_the_bound_of_what_its_links_must_carry_and_the_tasks() -> None:
    def of(stack: str, mtu: int = 1500) -> float:
        found = schedule_bound_s(
            stack, "all_reduce", num_workers=4, num_elements=2**20, dtype="float32", rate_bps=100e6, mtu=mtu
        )
        return found * 100e6 / 8

    assert of("ring/tcp") == of("gloo") == pytest.approx(1.5 * 2**22 * 1514 / 1448)
    assert of("ring/tcp", mtu=9000) == pytest.approx(1.5 * 2**22 * 9014 / 8948)
    assert of("parameter_server:servers=4/tcp") == pytest.approx(2**22 * 1514 / 1448)
    assert of("parameter_server:servers=2/tcp") == pytest.approx(2 * 2**22 * 1514 / 1448)
    assert of("in_network/ebpf") == of("in_network/ebpf/fp16") == pytest.approx(4096 * 1080)
    assert of("in_network:num_elements=2048/ebpf", mtu=9000) == pytest.approx(512 * 8248)
    samples = [replace(sample, stack="in_network/ebpf") for sample in _samples()]
    (row,) = summarise(samples, operation="all_reduce", dtype="float32", num_workers=2, rate_bps=RATE_BPS)
    assert row["bound_s"] == task_bound_s("all_reduce", num_workers=2, size_bytes=1000, rate_bps=RATE_BPS, mtu=1500)
    assert row["schedule_bound_s"] == pytest.approx(1080 * 8 / RATE_BPS)


def test_the_table_shows_the_share_of_the_bound_where_there_is_one() -> None:
    for rate_bps, shown in ((RATE_BPS, True), (None, False)):
        rows = summarise(_samples(), operation="all_reduce", dtype="float32", num_workers=2, rate_bps=rate_bps)
        out = io.StringIO()
        render(rows, Console(file=out, width=200))
        assert ("of bound" in out.getvalue()) == shown
        assert ("40.0%" in out.getvalue()) == shown


@pytest.mark.parametrize(("num_elements", "shape"), [(0, (1, 0)), (1, (1, 1)), (7, (1, 7)), (12, (3, 4)), (64, (8, 8))])
def test_buffers_are_as_square_as_can_be(num_elements: int, shape: tuple[int, int]) -> None:
    assert matrix_shape(num_elements) == shape


def test_a_list_as_osu_prints_it_has_the_ranks_own_means_in_microseconds() -> None:
    rows = [
        row
        for size_bytes, stack in ((1000, "ring/tcp"), (1000, "gloo"), (8, "ring/tcp"))
        for row in summarise(
            [
                replace(sample, stack=stack, size_bytes=size_bytes, duration_s=0.001 * (1 + sample.rank))
                for sample in _samples()
            ],
            operation="all_reduce",
            dtype="float32",
            num_workers=2,
            rate_bps=None,
        )
    ]
    text = io.StringIO()
    render_osu(rows, Console(file=text, width=40))
    assert text.getvalue().splitlines() == [
        "# all_reduce of float32, ring/tcp, 2 ranks",
        "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)        Iterations",
        "8                    1500.00           1000.00           2000.00                 2",
        "1000                 1500.00           1000.00           2000.00                 2",
        "# all_reduce of float32, gloo, 2 ranks",
        "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)        Iterations",
        "1000                 1500.00           1000.00           2000.00                 2",
    ]


def test_a_format_that_is_none_is_refused() -> None:
    assert parse_format("table") is render
    with pytest.raises(OptionError, match="--format csv: allowed: table, osu"):
        parse_format("csv")

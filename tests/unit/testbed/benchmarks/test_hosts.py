from typing import Any

import pytest

from testbed.benchmarks import hosts
from transports.bench.savings import Compared


def test_each_saving_is_a_row_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(num_bytes: int, **_: Any) -> Compared:
        return Compared(1e-6 * num_bytes, 2e-6 * num_bytes)

    monkeypatch.setattr(hosts, "kept_programs", compared)
    monkeypatch.setattr(hosts, "additions", compared)
    rows = [row for benchmark in hosts.BENCHMARKS.values() for row in benchmark()]
    assert [row["value"] for row in rows] == pytest.approx([2.0] * len(rows))
    assert len({row["what"] for row in rows}) == len(rows) == len(hosts.KEPT_BYTES) + len(hosts.ADDED_BYTES)
    kept, added = (row for row in rows if row["target"] is not None)
    assert (kept["target"], kept["holds"], kept["kept_s"]) == (1.3, True, pytest.approx(1e-6 * 4096))
    assert (added["target"], added["holds"], added["vectors_s"]) == (3.0, False, pytest.approx(1e-6 * (16 << 20)))

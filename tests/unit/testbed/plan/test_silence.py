from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan


def planned(**keys: Any) -> None:
    make_plan(validate({"name": "x", "workers": 2, **keys}))


@pytest.mark.parametrize(
    "workload",
    [
        {"kind": "training", "pace": {"forward": "10s", "backward": "20s"}},
        {"kind": "synthetic", "layers": "resnet50", "forward": "10s", "backward": "20s"},
    ],
)
def test_computing_as_long_as_the_timeout_is_refused(workload: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"^timeout: in 30s a worker .* takes 30s; allowed: more than that$"):
        planned(workload=workload)
    planned(workload=workload, timeout="31s")


def test_computing_that_takes_as_long_as_it_takes_is_not() -> None:
    planned(timeout="1s")


@pytest.mark.parametrize(
    ("keys", "least"),
    [
        ({}, r"2,000,128 bytes take at least 3\.34\ds"),
        ({"compression": "bf16"}, r"1,000,064 bytes take at least 1\.67\ds"),
        # With help from a switch each byte crosses a worker's link once.
        ({"workers": 4, "collective": {"kind": "in_network"}}, r"2,000,128 bytes take at least 3\.\d+s"),
    ],
)
def test_an_exchange_that_the_links_cannot_do_in_time_is_refused(keys: dict[str, Any], least: str) -> None:
    workload = {"kind": "synthetic", "layers": ["2MB", "1MB"], "forward": "1ms", "backward": "1ms"}
    spec: dict[str, Any] = {"link": {"rate": "5mbit"}, "workload": workload, "fusion": "layers", **keys}
    with pytest.raises(SpecError, match=rf"^timeout: 1s is over before the largest exchange can be: its {least} on"):
        planned(timeout="1s", **spec)
    planned(timeout="5s", **spec)

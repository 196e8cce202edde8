"""Points are planned before any is run, and what would only look like a comparison is refused."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.sweep import expand
from testbed.runner.sweep_points import plan_points


@pytest.mark.parametrize(
    "keys",
    [
        {"sweep": {"link.delay": ["1ms", "2ms"]}, "links": {"w*-s*": {"delay": "3ms"}}},
        {"sweep": {"link": [{"delay": "1ms"}, {"delay": "2ms"}], "seed": [1, 2]}, "links": {"w*-s*": {"delay": "3ms"}}},
        {"sweep": {"links.w0-s0.loss": [0.01, 0.02]}, "links": {"w0-s0": {}, "w*-s*": {"loss": 0.1}}},
    ],
)
def test_settings_that_every_link_has_otherwise_make_no_sweep(keys: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"sweep\.link.* and .* give every link the same settings"):
        plan_points(expand({"name": "x", **keys}))


def test_one_link_that_has_them_is_enough() -> None:
    swept = {"link.delay": ["1ms", "2ms"], "workers": [2, 4]}
    assert len(plan_points(expand({"name": "x", "sweep": swept, "links": {"w0-s0": {"delay": "3ms"}}}))) == 4
    later = [{"at": "1s", "link": "w*-s*", "delay": "3ms"}]
    assert len(plan_points(expand({"name": "x", "sweep": {"link.delay": ["1ms", "2ms"]}, "changes": later}))) == 2

"""What a backend cannot do is refused, naming those that can."""

from typing import Any

import pytest

from testbed.experiment.delay_backends.base import delay_backends
from testbed.experiment.link import BackendName, LinkSpec
from testbed.plan.link_configuration import LinkConfig
from testbed.plan.requested_links import able, unsupported


def requested(keys: dict[str, str] | None = None, **link: Any) -> list[LinkConfig]:
    return [LinkConfig(link="w0-s0", hop=("w0", "s0"), spec=LinkSpec.model_validate(link), keys=keys or {})]


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ({"delay": "199us"}, "link.delay: nfqueue honours 0s, or 200us to 1s; 199us"),
        ({"duplicate": "1%"}, "link.duplicate: nfqueue decides about packets and makes none"),
    ],
)
def test_nfqueue_says_what_it_has_not_got(link: dict[str, Any], words: str) -> None:
    (reason,) = unsupported(requested(**link), "nfqueue", superframes=False, bridged=False)
    assert words in reason


def test_a_error_names_the_key_that_asks_and_the_backends_that_can() -> None:
    (reason,) = unsupported(
        requested({"delay": "links.w0-s0.delay"}, delay="50us"), "nfqueue", superframes=True, bridged=False
    )
    assert reason.startswith("links.w0-s0.delay: ")
    assert "link.backend=netem" in reason


def test_best_effort_takes_a_delay_below_what_can_be_honoured() -> None:
    assert unsupported(requested(delay="50us", best_effort=True), "nfqueue", superframes=True, bridged=False) == []


def test_nothing_that_draws_for_whole_super_frames_is_taken() -> None:
    (reason,) = unsupported(requested(loss="1%"), "netem", superframes=True, bridged=False)
    assert reason.startswith("packet_mode: netem would draw once for a whole super-frame")
    assert "netem" not in able(requested(loss="1%"), superframes=True, bridged=False)
    assert "netem" in able(requested(delay="1ms"), superframes=True, bridged=False)


@pytest.mark.parametrize("link", [{"delay": "200us"}, {"delay": "1s"}, {"loss": "1%"}, {"delay": "5ms", "loss": "5%"}])
@pytest.mark.parametrize("backend", delay_backends())
def test_delay_and_loss_are_had_from_all(link: dict[str, Any], backend: BackendName) -> None:
    assert unsupported(requested(**link), backend, superframes=False, bridged=False) == []


def test_only_tap_marks_and_it_does_all_that_can_be_requested_of_a_link() -> None:
    everything = requested(delay="5ms", jitter="1ms", loss="1%", duplicate="1%", reorder="1%", ecn="100kB")
    assert able(everything, superframes=True, bridged=False) == ["tap"]
    (reason,) = unsupported(requested(ecn="100kB"), "nfqueue", superframes=True, bridged=False)
    assert reason.endswith("; link.backend=tap can")


def test_behind_a_bridge_only_what_sees_frames_delays() -> None:
    (reason,) = unsupported(requested(delay="1ms"), "nfqueue", superframes=True, bridged=True)
    assert reason.startswith("switch: nfqueue delays packets that are routed")
    assert reason.endswith("link.backend=netem or tap can")
    assert unsupported(requested(delay="1ms"), "netem", superframes=True, bridged=True) == []

"""What a backend cannot do is refused, naming those that can."""

import pytest

from testbed.links.delay import BACKENDS, refusals
from testbed.links.spec import LinkSpec


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ({"delay": "199us"}, "nfqueue honours 0s, or 200us to 1s; 199us"),
        ({"delay": "5ms", "jitter": "1ms"}, "link.jitter"),
    ],
)
def test_nfqueue_says_what_it_has_not_got_and_who_has(link: dict[str, str], words: str) -> None:
    (reason,) = refusals(LinkSpec.model_validate(link), "nfqueue")
    assert words in reason
    assert "link.backend=netem can" in reason


@pytest.mark.parametrize("link", [{"delay": "200us"}, {"delay": "1s"}, {"loss": "1%"}, {"delay": "5ms", "loss": "5%"}])
@pytest.mark.parametrize("backend", BACKENDS)
def test_delay_and_loss_are_had_from_both(link: dict[str, str], backend: str) -> None:
    assert refusals(LinkSpec.model_validate(link), backend) == []  # type: ignore[arg-type]

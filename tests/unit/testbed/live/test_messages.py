import json
from pathlib import Path
from typing import get_args

import pytest

from testbed.live.messages import (
    SCHEMA_VERSION,
    Change,
    Ending,
    Interference,
    Iteration,
    Links,
    Machine,
    Message,
    Over,
    Past,
    Phase,
    Playback,
    Shaping,
    decode,
    encode,
)
from tests.live import opened

EVERY: list[Message] = [
    opened(topology="torus"),
    Phase(at_s=1.5, name="measured"),
    Links(at_s=2.0, rate_bps=[10**8, None], used_permille=[500, None], waiting_bytes=[1, 0], dropped=[0, 7]),
    Iteration(at_s=2.5, phase="measured", number=3, time_s=0.4, parts_s={"compute": 0.3, "other": 0.1}, loss=None),
    Change(at_s=3.0, link="w0-s0", sender="w0", receiver="s0", setting="rate", before="1", after="2", source="manual"),
    Shaping(at_s=4.0, sent_share=0.99, num_probes=4, against=["w0 → s0"]),
    Machine(at_s=4.5, idle_share=0.1, against=[]),
    Interference(at_s=5.0, against=["w1 was stopped"]),
    Ending(outcome="valid", meaning="m", headline="h", reasons=[], notes=[], iteration_time_s=None, record="results/a"),
    Past(point="link.rate=1gbit", outcome="failed", iteration_time_s=None),
    Playback(at_s=1.0, begin_s=0.0, end_s=9.0, speed=4.0, paused=True),
    Over(num_dropped=3),
]


@pytest.mark.parametrize("message", EVERY, ids=lambda message: message.kind)
def test_what_is_encoded_is_decoded_to_the_same(message: Message) -> None:
    text = encode(message)
    assert "\n" not in text
    assert json.loads(text)["kind"] == message.kind
    assert decode(text) == message


def test_every_kind_of_message_is_among_them() -> None:
    assert {type(message) for message in EVERY} == set(get_args(Message))


def test_what_no_browser_reads_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode(Phase(at_s=float("nan"), name="measured"))


@pytest.mark.parametrize("text", ['{"kind": "later"}', '{"at_s": 1.0}', '{"kind": "phase", "at_s": 1}', "{", "[]"])
def test_what_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no message of this version"):
        decode(text)


def test_the_page_reads_this_version() -> None:
    """Which is written down twice; a page of another one says that it is older than the run."""
    script = Path("testbed/live/assets/page.js").read_text(encoding="utf-8")
    assert f"opening.schema_version !== {SCHEMA_VERSION})" in script

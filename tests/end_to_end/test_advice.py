"""Advice beside emulation: ten seeded questions, and whether what is recommended brings what it promises."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.here import invoke

pytestmark = [pytest.mark.privileged, pytest.mark.slow, pytest.mark.timeout(600)]

NUM_QUESTIONS = 10
POINTS = 0.05


def question(seed: int) -> list[object]:
    draw = random.Random(seed)
    trace = draw.choice(("resnet50", "resnet101", "googlenet", "mobilenet", "alexnet", "bert_base"))
    link = draw.choice(("1gbit", "5gbit", "10gbit", "25gbit")) + draw.choice(("", ",20us"))
    words: list[object] = [
        trace,
        "--workers",
        draw.choice((2, 4)),
        "--link",
        link,
        "--target",
        draw.choice((0.6, 0.7, 0.8, 0.9)),
    ]
    return [*words, "--efficiency", 0.7] if draw.random() < 0.3 else words


@pytest.fixture(scope="module", autouse=True)
def budget() -> None:
    """`dilation: auto` goes by what this machine carries."""
    assert invoke("doctor").returncode == 0


def test_what_is_recommended_brings_what_it_promises(tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = []
    for seed in range(NUM_QUESTIONS):
        words = question(seed)
        done = invoke("advise", *words, "--verify", "--json", "--output", tmp_path)
        assert done.stdout, (words, done.stderr)
        answer = json.loads(done.stdout)
        verified = answer["verified"]
        answers.append(verified | {"question": words, "recommended": answer["recommended"]})
    kept = [
        each
        for each in answers
        if each["measured"] is not None and each["measured"] >= each["target"] - POINTS and abs(each["error"]) <= POINTS
    ]
    assert len(kept) >= NUM_QUESTIONS - 1, answers

"""Numbers that are claimed are rows of the stored run of all benchmarks, and the page of these is that run's.

A number in README's prose is a measured one, and then the row of `docs/measured.json` that has it is named here; or a
limit that the code holds runs to; or part of a question, a name or a setting. One that is none of them fails.
"""

import re
from pathlib import Path
from typing import Final

import pytest

from testbed.benchmarks.page import measured_page, read_rows
from testbed.verdict.thresholds import BYTES_TOLERANCE

ROOT: Final = Path(__file__).parents[1]
DOCUMENT: Final = read_rows(ROOT / "docs" / "measured.json")
VALUES: Final[dict[str, float]] = {row["what"]: row["value"] for row in DOCUMENT["rows"]}
NUMBER: Final = re.compile(r"(?<![\w.])\d(?:[\d.,]*\d)?(?:\s?(?:%|(?:[GMk]?bit/s|us|ms|s|x|times|workers|GB|MB)\b))?")
MEASURED: Final = {"19 Gbit/s": "total of 8 x 2.5 Gbit/s, Gbit/s"}
"""What is claimed, and the row that it is of."""
AT_LEAST: Final = {"200 us": "nfqueue 200us: mean error, us"}
"""The shortest delay that is offered: there is a row for it."""
LIMITS: Final = {"1 %": BYTES_TOLERANCE}
SETTINGS: Final = frozenset(
    {
        *("25 Gbit/s", "32 workers"),  # the question
        *("50", "2020", "100 Gbit/s", "10", "84 times"),  # the figure: ResNet-50, its paper, rates, dilations
        "12",  # of Debian
        "2 Gbit/s",  # which Mininet refuses
        "2.0",  # of the licence
    }
)


def numbers(text: str) -> list[str]:
    """Those of Markdown's prose: without code, and without what links point to."""
    for code in (r"```.*?```", r"`[^`]*`"):
        text = re.sub(code, "", text, flags=re.DOTALL)
    return NUMBER.findall(re.sub(r"\]\([^)]*\)", "]", text))


def test_numbers_are_found() -> None:
    text = "It takes 1.02 of gloo's time, 5 ms, [3 %](docs/page.md#7) of `8`, ResNet-50.\n```\n9\n```\n"
    assert numbers(text) == ["1.02", "5 ms", "3 %", "50"]


def test_the_page_is_that_of_the_stored_run() -> None:
    assert (ROOT / "docs" / "measured.md").read_text() == measured_page(DOCUMENT)


def test_every_number_in_the_readme_is_measured_or_a_setting() -> None:
    unknown = set(numbers((ROOT / "README.md").read_text())) - {*MEASURED, *AT_LEAST, *LIMITS, *SETTINGS}
    assert not unknown, f"of which row of docs/measured.json are these? {sorted(unknown)}"


@pytest.mark.parametrize(("claimed", "row"), MEASURED.items())
def test_what_is_claimed_is_what_was_measured(claimed: str, row: str) -> None:
    number = claimed.partition(" ")[0]
    digits = len(number.partition(".")[2])
    assert float(number) == round(VALUES[row], digits)


def test_what_is_offered_was_measured_and_limits_are_the_code_s() -> None:
    assert set(AT_LEAST.values()) <= set(VALUES)
    assert {text: f"{100 * limit:g} %" for text, limit in LIMITS.items()} == {text: text for text in LIMITS}

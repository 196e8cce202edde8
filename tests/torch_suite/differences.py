"""What differs between gloo and testbed in torch's suite, and whether that is what has been written down."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.torch_suite.cases import Result

LIST: Final = Path(__file__).with_name("differences.json")
SAMPLE: Final = Path(__file__).with_name("sample.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A test that gloo passes and testbed does not."""

    test: str
    world_sizes: tuple[int, ...]
    reason: str


def expected(path: Path = LIST) -> list[Difference]:
    """Those written down."""
    return [
        Difference(test=each["test"], world_sizes=tuple(each["world_sizes"]), reason=each["reason"])
        for each in json.loads(path.read_text())
    ]


def unexpected(results: Iterable[Result], differences: Iterable[Difference]) -> list[str]:
    """What is not as it was written down, a line each. Tests that gloo does not pass prove nothing."""
    listed = {(each.test, size) for each in differences for size in each.world_sizes}
    complaints = []
    for (test, size), by_backend in sorted(_paired(results).items()):
        gloo, testbed = by_backend["gloo"], by_backend["testbed"]
        if gloo.status == "passed" and testbed.status == "passed" and (test, size) in listed:
            complaints.append(f"{test} at world size {size}: passes with testbed, but is listed as one that does not")
        elif gloo.status == "passed" and testbed.status != "passed" and (test, size) not in listed:
            complaints.append(f"{test} at world size {size}: {testbed.status} with testbed:\n{testbed.detail}")
        elif gloo.status in ("skipped", "not given") and testbed.status != gloo.status:
            complaints.append(f"{test} at world size {size}: {gloo.status} with gloo, {testbed.status} with testbed")
    return complaints


def sample(world_size: int) -> list[str]:
    """Tests of every kind that are quick, and that both backends pass or only testbed does."""
    names: list[str] = json.loads(SAMPLE.read_text())[str(world_size)]
    return names


def not_passed(results: Iterable[Result]) -> list[str]:
    """What has not, a line each."""
    return [
        f"{result.test} at world size {result.world_size}: {result.status} with {result.backend}:\n{result.detail}"
        for result in results
        if result.status != "passed"
    ]


def table(results: Sequence[Result], differences: Iterable[Difference]) -> str:
    """Markdown: how many ended how, and what differs."""
    reasons = {(each.test, size): each.reason for each in differences for size in each.world_sizes}
    counts = Counter((result.world_size, result.backend, result.status) for result in results)
    lines = ["| world size | backend | passed | failed | skipped | not given |", "|---|---|---|---|---|---|"]
    for size, backend in sorted({(result.world_size, result.backend) for result in results}):
        cells = [str(counts[size, backend, status]) for status in ("passed", "failed", "skipped", "not given")]
        lines.append(f"| {size} | {backend} | {' | '.join(cells)} |")
    lines += ["", "| world size | test | gloo | testbed | reason |", "|---|---|---|---|---|"]
    for (test, size), by_backend in sorted(_paired(results).items(), key=lambda item: (item[0][1], item[0][0])):
        gloo, testbed = by_backend["gloo"], by_backend["testbed"]
        if gloo.status != testbed.status:
            # What gloo fails and testbed passes is in its own error's last line.
            last = [line for line in gloo.detail.splitlines() if "Error" in line]
            reason = reasons.get((test, size), last[-1] if gloo.status == "failed" and last else "**not listed**")
            lines.append(f"| {size} | `{test}` | {gloo.status} | {testbed.status} | {reason} |")
    return "\n".join(lines) + "\n"


def _paired(results: Iterable[Result]) -> Mapping[tuple[str, int], Mapping[str, Result]]:
    pairs: dict[tuple[str, int], dict[str, Result]] = {}
    for result in results:
        pairs.setdefault((result.test, result.world_size), {})[result.backend] = result
    return pairs

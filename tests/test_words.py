"""Words of our own for which networking and ML systems have others: the table says which, and no text has the old ones.

A reader who knows `incast` finds nothing under `abreast`, and a search for `round-trip time` nothing under `there and
back`. CHANGELOG.md and what reads old records are not looked at: they name what things were called.
"""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = (
    "CHANGELOG.md",
    "testbed/record/migrations.py",
    "tests/records/",
    "tests/test_words.py",
    "tests/words_of_version_2.json",
)
GAP = r"[\s#*/]+"
"""What stands for a space of a pattern: phrases go on behind the end of a line, and in comments behind its mark."""


class Word(NamedTuple):
    pattern: str
    """A regular expression that no text may match."""
    say: str
    finds: tuple[str, ...]
    """What the pattern is for..."""
    leaves: tuple[str, ...] = ()
    """...and what looks like it and may be said."""
    where: str = ""
    """The folder in which the word means this; empty: everywhere."""

    def matches(self, text: str) -> list[re.Match[str]]:
        return list(re.finditer(self.pattern.replace(" ", GAP), text))


TABLE = {
    "the switch that adds": Word(
        r"(?i:\bswitch(?:es)? that adds?\b)",
        "in-network aggregation; the aggregating switch",
        ("a switch that adds", "the switch\n# that adds"),
    ),
    "asked": Word(
        r"(?<![A-Za-z])[Aa]sked(?![a-z])(?! (?:first|whether|if|how|when|why)\b)|(?<![a-z])AskedLink",
        "requested or configured; LinkConfig",
        ("what was asked", "direction.asked", "asked_over_time", "as\n    # asked", "AskedLink("),
        ("masked", "who is asked first"),
    ),
    "ever": Word(r"\w\.ever\b|\bever_", "requested or configured", ("direction.ever", "ever_asked"), ("for ever.",)),
    "told": Word(
        r"(?<![A-Za-z])[Tt]old(?![a-z])(?! apart)", "reported", ("it is told", "told_s"), ("untold", "told\n# apart")
    ),
    "ways": Word(
        r"\.ways\b|_ways\b|\bways_|\bways\s*[=:(\[]|(?i:\b(?:equal|all|shortest|both) ways\b)",
        "paths; in both directions",
        ("plan.ways", "num_ways", "ways: int", "equal ways", "carry the same both ways"),
        ("always", "two ways to say it", "sideways"),
    ),
    "Seat": Word(
        r"\bSeats?\b|(?<![a-z])seats?(?![a-z])", "aggregator assignment", ("Seat(", "seats", "_seat"), ("nauseating",)
    ),
    "served_by": Word(r"served_by", "aggregator assignment", ("plan.served_by",), ("is served by",)),
    "informed()": Word(
        r"(?<![a-z])informed\(|\.informed\b",
        "with_network_info()",
        ("auto.informed(",),
        ("well informed", "uninformed("),
    ),
    "misfits": Word(r"(?i:(?<![a-z])misfits?(?![a-z]))", "incompatibilities", ("misfit(", "misfits")),
    "refusals": Word(
        r"\brefusals?\(|[._]refusals?\b|\brefusals?_",
        "unsupported",
        ("refusals(", "backend.refusal", "test_refusals"),
        ("every refusal says why",),
    ),
    "lacks": Word(
        r"\blacks?\(|\w[._]lacks\b|\blacks_|(?<![a-z])Lacks(?:Error|\b)",
        "missing",
        ("lacks(", "channel.lacks", "lacks_netem", "LacksError"),
        ("the file lacks a line", "slacks"),
    ),
    "cure": Word(r"(?i:(?<![a-z])cures?(?![a-z]))", "fix", ("CURE", "the cure", "_cure"), ("secure", "obscure")),
    "Workbench": Word(r"(?i:(?<![a-z])workbench)", "Session", ("Workbench(", "the workbench")),
    "Findings": Word(
        r"\bFindings\b|\bfindings(?:\.|_\w)", "RunResults", ("Findings(", "findings.py"), ("our findings",)
    ),
    "Mark": Word(
        r"\bMark\b|on_marks?\b", "LinkChangeEvent", ("Mark(", "on_mark"), ("marks of ECN", "Markdown"), "testbed/"
    ),
    "whole stack": Word(
        r"(?i:whole(?: |_)stacks?)", "baseline library", ("Whole stacks", "whole_stack"), ("the whole of a stack",)
    ),
    "rivals": Word(r"(?i:(?<![a-z])rivals?(?![a-z]))", "baselines", ("rivals", "RIVAL"), ("arrivals",)),
    "bars": Word(
        r"(?i:(?<![a-z])bars(?![a-z]))", "targets", ("BARS", "bars.py"), ("progress_bar",), "testbed/benchmarks/"
    ),
    "cut, mend a link": Word(
        r"(?i:\bcut (?:link|cable)s?\b|\b(?:link|cable)s? (?:is|are|was) cut\b|(?<![a-z])mend(?:s|ed|ing)?(?![a-z]))",
        "link down, link up",
        ("a cut link", "the cable is\n# cut", "mended"),
        ("messages are cut", "recommend", "amend"),
    ),
    "by hand": Word(r"(?i:\bby(?: |_)hand\b)", "manual, manually", ("by hand", "by_hand"), ("by handing",)),
    "takes its leave": Word(
        r"(?i:\btak(?:es?|ing)(?: |_)(?:its |their )?leave\b)",
        "graceful close",
        ("takes its leave", "take_leave", "taking leave"),
        ("takes it, leaves",),
    ),
    "LEAVE": Word(
        r"\bLEAVE\b", "CLOSE; the aggregation protocol's LEAVE is another", ("Kind.LEAVE",), ("leaves",), "transports/"
    ),
    "last words": Word(r"(?i:\blast(?: |_)words\b)", "close frame", ("last words", "last_words"), ("its last word",)),
    "STRANGER": Word(r"(?i:(?<![a-z])strangers?(?![a-z]))", "unknown connection", ("STRANGER", "a stranger")),
    "lent": Word(
        r"(?i:(?<![a-z])lent(?![a-z]))", "zero-copy in flight", ("lent to", "num_lent"), ("silent", "lenthwise")
    ),
    "num_back": Word(r"\bnum_back\b", "num_completed", ("lane->num_back",), ("num_backlogged",)),
    "_swift": Word(r"_swift\b|\bswift_", "native_endpoint", ("self._swift",), ("swiftly",)),
    "carry_out": Word(r"\b_?carry_out\b", "execute", ("carry_out(",), ("carry out",)),
    "go_on": Word(r"\b_?go_on\b", "resume", ("_go_on()",), ("go on", "test_others_go_on_after_it")),
    "culprit": Word(r"(?i:culprit)", "failed peer", ("culprit's",)),
    "rested": Word(
        r"(?<![A-Za-z])rested(?![a-z])", "app-limited", ("sample.rested", "has rested"), ("arrested", "tested")
    ),
    "flows": Word(r"\.flows\b", "may_delay_ack", ("self.flows",), ("two flows",), "transports/channels/_udp/"),
    "alarmed": Word(r"(?<![A-Za-z])alarmed(?![a-z])", "needs_attention", ("alarmed:",)),
    "there and back": Word(
        r"(?i:there(?: |_)and(?: |_)back\b)", "round-trip time", ("10 ms there and\n * back", "there_and_back")
    ),
    "rate given, discovered": Word(
        r"(?i:(?:Discovered|Given)Pace|\brates? (?:is |are )?(?:given|discovered)\b|discover(?:s|ed) (?:its )?rate)",
        "fixed, probed rate",
        ("rate given", "rates are discovered", "discovers its rate", "discovered rate", "GivenPace"),
        ("at a given rate",),
    ),
    "abreast": Word(r"(?i:abreast)", "concurrent senders (incast)", ("senders abreast",)),
    "laboratory": Word(r"(?i:laborator(?:y|ies))", "controller, privileged; the testbed", ("of_laboratory",)),
    "held_up_s": Word(r"held_up", "straggler_wait_s", ("held_up_s",), ("holds up",)),
    "beside, inside": Word(
        r"[\"'`](?:beside|inside)[\"'`]|\b(?:beside|inside)_",
        "colocated, intra_host",
        ('"beside"', "`inside`", "inside_bytes"),
        ("beside it", "test_it_runs_inside_in_a_fork"),
    ),
    "unshared memory": Word(r"(?i:unshared(?: |_)memory)", "unique set size (USS)", ("Unshared memory",)),
    "Around it": Word(r"\bAround it\b|(?i:\| around it \|)", "Overhead", ("Around it", "| around it |"), ("round it",)),
    "Rate held": Word(r"\bRate held\b", "Shaping accuracy", ("Rate held",)),
}
# lane, slot, window and program are to be qualified: which of their meanings is meant no pattern can say.


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and not name.startswith(SKIPPED) and (ROOT / name).is_file()]
    contents = {name: (ROOT / name).read_bytes() for name in names}
    return {name: content.decode() for name, content in contents.items() if b"\0" not in content}


@pytest.mark.parametrize("today", TABLE)
def test_the_pattern_finds_the_word_and_leaves_ordinary_english(today: str) -> None:
    word = TABLE[today]
    assert [text for text in word.finds if not word.matches(text)] == []
    assert [text for text in word.leaves if word.matches(text)] == []


@pytest.mark.parametrize("today", TABLE)
def test_the_word_is_not_left(today: str, texts: dict[str, str]) -> None:
    word, newline = TABLE[today], "\n"
    searched = {name: text for name, text in texts.items() if name.startswith(word.where)}
    assert searched, f"nothing is tracked under {word.where}"
    places = [
        f"{name}:{1 + text[: match.start()].count(newline)}: {' '.join(match[0].split())}"
        for name, text in searched.items()
        for match in word.matches(text)
    ]
    assert not places, f"say {word.say} ({len(places)} places):{newline}{newline.join(places[:40])}"

"""What README and docs say to type is accepted, what they point to is there, and decisions say where they stand."""

import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

import switch_agg.__main__
import testbed.cli
from testbed.experiment.experiment import load
from testbed.experiment.sweep import load_sweep
from testbed.plan.plan import make_plan

ROOT: Final = Path(__file__).resolve().parents[1]
MADE: Final = ROOT / "docs" / "reference"
"""By `make docs`, of what is tested where it stands."""
PAGES: Final = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(page for page in sorted((ROOT / "docs").glob("**/*.md")) if MADE not in page.parents),
]
PROGRAMS: Final = {
    "testbed": typer.main.get_command(testbed.cli.app),
    "switch-agg": typer.main.get_command(switch_agg.__main__.app),
}
DECISIONS: Final = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
STATUS: Final = re.compile(
    r"\*\*Status:\*\* (?:accepted|overtaken by \[[0-9]+\]\(([^)]+)\)), 20[0-9]{2}-[01][0-9]-[0-3][0-9][.;] ?"
)


def documented() -> list[list[str]]:
    """The words of every command of ours in a console block, an ellipsis of a path taken for a path that is there."""
    lines = [line for page in PAGES for line in re.findall(r"^\$ (.*)$", page.read_text(), re.MULTILINE)]
    commands = []
    for line in lines:
        words = shlex.split(line.rpartition("| ")[2], comments=True)
        while words:
            one = [word.removesuffix(";") for word in takewhile(lambda word: not word.endswith(";"), words)]
            one += [word.removesuffix(";") for word in words[len(one) : len(one) + 1]]
            words = words[len(one) :]
            one[0] = one[0].removeprefix(".venv/bin/")
            if one[0] in PROGRAMS:
                commands.append([word.replace("results/quickstart-...", "results") for word in one])
    return [list(words) for words in dict.fromkeys(map(tuple, commands))]


def parsed(command: Any, words: list[str]) -> Any:
    """The context of a command line, parsed and not carried out. Raises click's errors."""
    while hasattr(command, "commands") and not (command.invoke_without_command and not words[1:]):
        words = words[1:]
        assert words[0] in command.commands, words[0]
        command = command.commands[words[0]]
    return command.make_context(words[0], words[1:])


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_a_documented_command_is_accepted(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    context = parsed(PROGRAMS[words[0]], words)
    spec, overrides = context.params.get("spec"), context.params.get("overrides")
    if spec is not None:
        for point in load_sweep(spec, overrides or []).points:
            # `auto` asks this machine's budget; what is planned is the same for any factor.
            automatic = point.experiment.dilation == "auto"
            make_plan(load(spec, [*(overrides or []), "dilation=100"]) if automatic else point.experiment)


def test_commands_are_found() -> None:
    found = documented()
    assert ["testbed", "top"] in found
    assert len(found) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_points_to_is_there(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        pointed = (page.parent / path) if path else page
        assert pointed.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", pointed.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.name[:4])
def test_a_decision_says_where_it_stands(decision: Path) -> None:
    title, _, status, *_ = decision.read_text().splitlines()
    assert title.startswith(f"# {int(decision.name[:4])}. ")
    match = STATUS.match(f"{status} ")
    assert match, status
    assert f"]({decision.name}) {title.partition('. ')[2]}" in (ROOT / "docs" / "decisions" / "README.md").read_text()
    if match[1]:
        assert f"]({decision.name})" in (ROOT / "docs" / "decisions" / match[1]).read_text(), (
            "it says what it overtakes"
        )


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


def test_the_changelog_names_decisions_that_are_there() -> None:
    named = set(re.findall(r"docs/decisions/([0-9]{4})", (ROOT / "CHANGELOG.md").read_text()))
    assert named
    assert named <= {path.name[:4] for path in DECISIONS}

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from testbed.deployment.link_service import LinkService
from testbed.deployment.live_links import LinkChangeEvent, LinkNow
from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.changes import LinkChange
from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.runner.link_client import SOCKET_NAME, change_links, show_links

PLAN = make_plan(validate({"name": "t", "workers": 2}))


class Links:
    """What the service needs of testbed.deployment.live_links.LiveLinks."""

    def __init__(self) -> None:
        self.changes: list[LinkChange] = []
        self.error: Exception | None = None

    def now(self) -> list[LinkNow]:
        return [
            LinkNow(direction=direction, down=number == 0, used_bps=5e6, backlog_bytes=3028, num_drops=7, num_marks=2)
            for number, direction in enumerate(PLAN.directions)
        ]

    def change(self, change: LinkChange) -> list[LinkChangeEvent]:
        if self.error:
            raise self.error
        self.changes.append(change)
        plain: dict[str, Any] = {"link": "w1-s0", "node": "w1", "to": "s0", "setting": "rate"}
        return [LinkChangeEvent(at_s=1.0, before="100mbit", after="50mbit", rate_bps=50e6, source="manual", **plain)]


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    (tmp_path / "run").mkdir()
    links = Links()
    with closing(LinkService(tmp_path / "run" / SOCKET_NAME, links, name="t")):  # type: ignore[arg-type]
        yield links


def test_the_socket_is_the_owners_and_the_groups(tmp_path: Path, links: Links) -> None:
    assert (tmp_path / "run" / SOCKET_NAME).stat().st_mode & 0o777 == 0o660


def test_every_direction_is_shown(tmp_path: Path, links: Links) -> None:
    rows = show_links("run", root=tmp_path)
    assert [(row["from"], row["to"]) for row in rows] == [("w0", "s0"), ("s0", "w0"), ("w1", "s0"), ("s0", "w1")]
    assert (rows[0]["down"], rows[1]["down"]) == (True, False)
    assert rows[0]["requested"]["rate"] == "100mbit"
    assert (rows[0]["used_bps"], rows[0]["backlog_bytes"], rows[0]["drops"], rows[0]["marks"]) == (5e6, 3028, 7, 2)


def test_a_change_arrives_as_requested_and_its_answer_comes_back(tmp_path: Path, links: Links) -> None:
    (changed,) = change_links("run", "w1->s0", {"rate": "50mbit", "queue": "2bdp"}, root=tmp_path)
    assert changed == {
        "link": "w1-s0",
        "from": "w1",
        "to": "s0",
        "setting": "rate",
        "before": "100mbit",
        "after": "50mbit",
    }
    change_links("run", "w*", {}, carrier="down", root=tmp_path)
    change_links("run", "w*", {}, carrier="up", root=tmp_path)
    first, second, third = links.changes
    assert (first.link, first.source, first.down) == ("w1->s0", "manual", None)
    assert first.settings.named["rate_bps"] == 50e6
    assert (second.down, third.down) == (True, False)


def test_errors_keep_their_kind(tmp_path: Path, links: Links) -> None:
    with pytest.raises(SpecError, match="rate"):
        change_links("run", "w1-s0", {"rate": "50"}, root=tmp_path)
    links.error = SpecError("no such link")
    with pytest.raises(SpecError, match="no such link"):
        change_links("run", "w9", {"rate": "50mbit"}, root=tmp_path)
    links.error = MissingRequirementError("the kernel did not take it")
    with pytest.raises(MissingRequirementError, match="did not take it"):
        change_links("run", "w1-s0", {"rate": "50mbit"}, root=tmp_path)
    with pytest.raises(MissingRequirementError, match="does not answer"):
        show_links("gone", root=tmp_path)

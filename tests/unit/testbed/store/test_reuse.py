import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from testbed.store.documents import Origin, flat, origin_here, origin_of
from testbed.store.reuse import unlike
from testbed.system import environment

SOURCE = Path("tests/records/version_4")


def made_here(directory: Path, **changes: Any) -> Path:
    """A record of this machine and code, but for what is changed."""
    path = shutil.copytree(SOURCE, directory / "record")
    (path / "environment.json").write_text(json.dumps({**environment.describe(), **changes}))
    return path


@pytest.fixture
def here() -> Origin:
    return origin_here()


def test_what_was_made_here_by_this_code_may_be_reused(tmp_path: Path, here: Origin) -> None:
    assert unlike(made_here(tmp_path, load_average=[9, 9, 9], commit="another, of the same sources"), here) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel": "1.2.3"}, "another machine (.* Linux 1.2.3)"),
        ({"num_machines": 2}, "another machine (.*, one of 2 machines)"),
        ({"num_cores": 640}, "another machine (.* 640 cores"),
        ({"code_sha256": "0" * 64}, "another version of the code"),
        ({"python": "2.7"}, "another version of the code or its packages"),
        ({"packages": {"torch": "1.0"}}, "another version of the code or its packages"),
    ],
)
def test_another_machine_and_another_code_are_named(
    tmp_path: Path, here: Origin, changes: dict[str, Any], words: str
) -> None:
    (found,) = unlike(made_here(tmp_path, **changes), here)
    assert words.partition("(")[0] in found


def test_results_are_of_a_command_s_program_and_of_an_image(tmp_path: Path, here: Origin) -> None:
    files = "f" * 64
    command = here._replace(program=files)
    contained = command._replace(image="sha256:1")
    image = {"runtime": {"kind": "docker", "image_id": "sha256:1"}}
    namespace = {"runtime": {"kind": "namespace"}}
    cases: list[tuple[dict[str, Any], Origin, tuple[str, ...]]] = [
        ({"program_sha256": files}, command, ()),
        ({"program_sha256": files, **namespace}, command, ()),
        ({"program_sha256": "0" * 64}, command, ("another program",)),
        ({}, command, ("another program",)),  # made before programs were recorded
        ({"program_sha256": files, **image}, contained, ()),
        ({"program_sha256": files, **image}, command, ("another image (sha256:1)",)),
        ({"program_sha256": files}, contained, ("another image (none, or unknown)",)),
        (image, here._replace(image="sha256:1"), ()),  # a training of ours
        (image, here._replace(image="sha256:2"), ("another image (sha256:1)",)),
    ]
    for number, (changes, wanted, found) in enumerate(cases):
        assert unlike(made_here(tmp_path / str(number), **changes), wanted) == found, changes


def test_how_the_machine_was_set_is_compared_where_both_say_it(
    tmp_path: Path, here: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, document = made_here(tmp_path / "here"), environment.describe()
    tuned = {**document["sysctls"], "net.ipv4.tcp_wmem": "4096 16384 1", "net.ipv4.tcp_congestion_control": "x"}
    (difference,) = unlike(made_here(tmp_path / "tuned", sysctls=tuned), here)
    assert difference.startswith("net.ipv4.tcp_wmem 4096 16384 1 instead of ")
    number = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: frozenset(range(number + 1)))
    assert unlike(made, origin_of(environment.describe())) == (f"usable cores {number} instead of {number + 1}",)
    del document["num_usable_cores"], document["sysctls"]
    (made / "environment.json").write_text(json.dumps(document))
    assert unlike(made, here) == (), "records did not say it"


def test_what_was_left_to_the_machine_is_compared_where_both_say_what_it_was(tmp_path: Path, here: Origin) -> None:
    chosen = {"kind": "auto", "copying": "8gbit"}
    decided = {"delay_backend": "netem", "dilation": 2.0, "buckets": [1, 2], "collectives": {"0": chosen}}
    wanted = here._replace(decided=flat(decided))
    cases: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({}, ()),
        ({"delay_backend": "nfqueue"}, ("delay_backend nfqueue instead of netem",)),
        ({"delay_backend": None}, ("delay_backend None instead of netem",)),
        ({"dilation": 20.0}, ("dilation 20 instead of 2",)),
        ({"collectives": {"0": {**chosen, "copying": "5gbit"}}}, ("collectives.0.copying 5gbit instead of 8gbit",)),
    ]
    for number, (changes, found) in enumerate(cases):
        assert unlike(made_here(tmp_path / str(number), decided={**decided, **changes}), wanted) == found
    (buckets,) = unlike(made_here(tmp_path / "buckets", decided={**decided, "buckets": [3]}), wanted)
    assert re.fullmatch(r"buckets 1 \(\w{8}\) instead of 2 \(\w{8}\)", buckets)
    assert unlike(made_here(tmp_path / "before"), wanted) == (), "records did not say it"


def test_another_schema_is_named(tmp_path: Path, here: Origin) -> None:
    path = made_here(tmp_path)
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "schema_version": 2}))
    assert unlike(path, here) == ("another schema (version 2)",)


def test_records_that_do_not_say_which_code_made_them_are_not_taken_for_this_ones(here: Origin) -> None:
    assert "another version of the code or its packages" in unlike(SOURCE.with_name("version_3"), here)
    assert unlike(Path("nowhere"), here) == ("a record that does not say where it was made",)

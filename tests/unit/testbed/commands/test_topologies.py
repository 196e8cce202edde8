"""topology on the command line, and specs whose network is a document."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from testbed.cli import app
from testbed.errors import MissingRequirementError, SpecError
from tests.infragraphs import two_leaves

SPEC = """
name: small
workers: 4
link: {rate: 1gbit, delay: 5us}
workload: {kind: synthetic, layers: [4MB], forward: 1ms, backward: 2ms}
metrics: {port: null}
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump(two_leaves()))
    return path


def test_a_document_is_shown_as_what_it_becomes(document: Path) -> None:
    done = run("topology", "show", str(document))
    assert done.exit_code == 0
    assert "4 places for hosts on 2 of 3 switches, 2 links between switches" in done.stdout
    assert "note 2 hosts (server) have 4 places" in done.stdout
    shown = json.loads(run("topology", "show", str(document), "--place", "host", "--json").stdout)
    assert [host["name"] for host in shown["hosts"]] == ["host.0", "host.1"]


def test_a_document_that_is_wrong_is_named_with_its_field(document: Path) -> None:
    document.write_text(yaml.safe_dump(two_leaves() | {"links": []}))
    done = run("topology", "show", str(document))
    assert isinstance(done.exception, SpecError)
    assert f"topology: path: {document}: edges.0.link: there is no link 'access'" in str(done.exception)


@pytest.mark.parametrize("name", ["out.yaml", "out.json"])
def test_what_is_exported_is_simulated_and_predicted_as_the_spec_is(spec: Path, name: str, tmp_path: Path) -> None:
    written = tmp_path / "made" / name
    done = run("topology", "export", str(spec), str(written), "--set", "topology=dumbbell")
    assert done.exit_code == 0
    assert "4 hosts, 2 switches, 5 links" in done.stdout
    imported = f"topology={{kind: infragraph, path: {written}}}"
    for command, times in (("simulate", ("iteration_time_s",)), ("predict", ("iteration_time_s",))):
        ours = json.loads(run(command, str(spec), "--set", "topology=dumbbell", "--json").stdout)
        theirs = json.loads(run(command, str(spec), "--set", imported, "--set", "link.rate=1mbit", "--json").stdout)
        assert [theirs[each] for each in times] == [ours[each] for each in times]
        assert ours["assumptions"] == []
        assert "4 places for workers" in theirs["assumptions"][0]
        assert "note 4 hosts (host_1) have 4 places" in run(command, str(spec), "--set", imported).stdout
    planned = run("plan", str(spec), "--set", imported).stdout
    assert "links as the topology says" in planned
    assert "note 4 hosts (host_1) have 4 places" in planned


def test_an_export_has_as_many_hosts_as_requested_and_says_what_it_leaves_out(spec: Path, tmp_path: Path) -> None:
    written = tmp_path / "large.json"
    options = ("--workers", "128", "--set", "topology=fat_tree", "--set", "link.loss=1%")
    done = run("topology", "export", str(spec), str(written), *options)
    assert "128 hosts, 80 switches" in done.stdout
    assert "note the format has no words for loss of links" in done.stdout
    imported = f"topology={{kind: infragraph, path: {written}}}"
    assert run("simulate", str(spec), "--workers", "128", "--set", imported).exit_code == 0
    refused = run("simulate", str(spec), "--workers", "129", "--set", imported)
    assert "129 do not fit the 128 places of topology infragraph" in str(refused.exception)


def test_a_network_is_written_into_a_folder_and_not_into_a_file(spec: Path, tmp_path: Path) -> None:
    assert run("topology", "export", str(spec), str(tmp_path / "folder" / "x.yaml")).exit_code == 0
    done = run("topology", "export", str(spec), str(spec / "x.yaml"))
    assert isinstance(done.exception, MissingRequirementError)
    assert f"cannot write {spec}" in str(done.exception)

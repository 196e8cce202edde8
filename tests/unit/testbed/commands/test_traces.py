"""trace on the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from testbed.cli import app
from testbed.errors import MissingRequirementError, SpecError
from testbed.traces.formats.base import read_table, read_trace
from testbed.traces.graph import Graph


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["trace", *arguments])


def test_a_network_is_written_as_a_table_and_read_back(tmp_path: Path) -> None:
    table = tmp_path / "table"
    assert run("export", "resnet50", str(table)).exit_code == 0
    reported, again = (json.loads(run("show", trace, "--json").stdout) for trace in ("resnet50", str(table)))
    assert again["size_bytes"] == reported["size_bytes"] == 102_228_128
    assert again["backward_s"] == pytest.approx(reported["backward_s"])
    assert "layer4.2.conv3" in run("show", str(table)).stdout


def test_a_files_batch_size_is_its_own(tmp_path: Path) -> None:
    table = tmp_path / "table"
    run("import", "mobilenet", str(table))
    done = run("show", str(table), "--batch-size", "8")
    assert isinstance(done.exception, SpecError)


def test_networks_formats_and_generators_are_listed() -> None:
    listed = json.loads(run("list", "--json").stdout)
    assert "gpt2" in listed["networks"]
    assert listed["formats"] == ["b_caffe", "backward_log", "chakra", "graph", "kineto", "layers"]
    assert listed["formats_written"] == ["chakra", "graph", "layers"]
    assert "fsdp" in listed["generators"]
    assert "resnet50" in run("list").stdout


def test_a_graph_is_generated_shown_exported_and_imported(tmp_path: Path) -> None:
    graph, again = tmp_path / "graph.json", tmp_path / "again.json"
    options = ("--ranks", "4", "--set", "activations=6MiB", "--set", "micro_batches=4", "--batch-size", "4")
    assert run("generate", "pipeline", "gpt2", str(graph), *options).exit_code == 0
    shown = json.loads(run("show", str(graph), "--json").stdout)
    assert (shown["num_ranks"], shown["exchanges"]) == (
        4,
        [{"operation": "message", "element_type": "float32", "size_bytes": 6 * 2**20, "count": 24}],
    )
    assert "a graph of 4 ranks" in run("show", str(graph)).stdout
    assert run("export", str(graph), str(tmp_path / "et" / "p"), "--format", "chakra").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "et").iterdir()) == ["p.0.et", "p.1.et", "p.2.et", "p.3.et"]
    assert run("import", str(tmp_path / "et"), str(again)).exit_code == 0
    first, second = read_trace(graph), read_trace(again)
    assert isinstance(first, Graph)
    assert isinstance(second, Graph)
    assert first.matches == second.matches
    assert first.sent_bytes == second.sent_bytes


def test_a_log_without_a_forward_pass_is_imported_with_one(tmp_path: Path) -> None:
    """A replay took none, and no option said otherwise."""
    log, table = tmp_path / "log", tmp_path / "table"
    log.write_text("a comment\n1\n2\n1000,400\n2000,800\n")
    without = run("import", str(log), str(table))
    assert without.exit_code == 0
    assert "the trace says nothing of a forward pass" in without.stderr
    done = run("import", str(log), str(table), "--iteration", "5ms")
    assert (done.exit_code, done.stderr) == (0, "")
    found = read_table(table)
    assert (found.forward_s, found.backward_s) == (pytest.approx(2e-3), pytest.approx(3e-3))
    for source, problem in ((log, "backward alone takes 0.003 s"), (table, "the trace says how long forward takes")):
        refused = run("import", str(source), str(table), "--iteration", "2ms")
        assert f"--iteration: {problem}" in str(refused.exception)
    assert run("generate", "fsdp", "gpt2", str(log), "--ranks", "2").exit_code == 0
    refused = run("import", str(log), str(table), "--iteration", "2ms")
    assert "--iteration is of a table of layers" in str(refused.exception)


def test_a_network_has_no_format(tmp_path: Path) -> None:
    refused = run("import", "resnet50", str(tmp_path / "x"), "--format", "layers")
    assert "resnet50 is a network, which has no format: leave --format out" in str(refused.exception)


def test_a_collectives_schedule_is_written_for_each_rank(tmp_path: Path) -> None:
    assert run("schedule", "ring", str(tmp_path / "s" / "ring"), "--ranks", "3", "--size", "3MiB").exit_code == 0
    graph = read_trace(tmp_path / "s")
    assert isinstance(graph, Graph)
    assert graph.sent_bytes == 2 * 2 * 3 * 2**20


@pytest.mark.parametrize("part", ["input_us", "host_to_device_us"])
def test_a_graph_of_a_table_that_waits_for_its_input_is_refused(part: str, tmp_path: Path) -> None:
    """It was left out without a word, and a replay went on as if data were there."""
    table, graph = tmp_path / "table", tmp_path / "graph.json"
    layers = "Id Name Forward Backward Comm Size\n0 conv1 50000 50000 - 4000000\n"
    table.write_text(f"# {part}=500000\n{layers}")
    done = run("generate", "data_parallel", str(table), str(graph), "--ranks", "2")
    assert isinstance(done.exception, SpecError)
    assert part in str(done.exception)
    assert not graph.exists()
    table.write_text(layers)
    assert run("generate", "data_parallel", str(table), str(graph), "--ranks", "2").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("generate", "pip", "gpt2", "x", "--ranks", "2"), "'pip' is not a generator; allowed: data_parallel"),
        (("generate", "pipeline", "gpt2", "x", "--ranks", "2"), "activations: required"),
        (("generate", "fsdp", "gpt2", "x", "--ranks", "2", "--set", "unit=net"), "unit: allowed: 'block' or 'layer'"),
        (("generate", "fsdp", "gpt2", "x", "--ranks", "2", "--set", "unit"), "write an option and a value"),
        (
            ("generate", "fsdp", "gpt2", "x", "--ranks", "2", "--set", "unit=2020-13-45"),
            "--set unit: '2020-13-45' is not",
        ),
        (("generate", "fsdp", "gpt2", "x", "--ranks", "2", "--format", "kineto"), "format kineto is only read"),
        (("generate", "fsdp", "gpt", "x", "--ranks", "2"), "'gpt' is neither a network nor a file"),
        (("export", "resnet50", "x", "--format", "chakra"), "a table of layers is no graph until"),
        (("export", "resnet50", "x", "--format", "pdf"), "'pdf' is not a trace format; allowed: b_caffe"),
        (("import", "resnet51", "x"), "'resnet51' is neither a network nor a file"),
        (("schedule", "ring", "x", "--ranks", "2", "--size", "big"), "--size: "),
        (("schedule", "ring", "x", "--ranks", "2", "--size", "3B"), "3 bytes, which no number of float32 has"),
        (("schedule", "ring", "x", "--ranks", "2", "--operation", "sum"), "operation 'sum' is not known"),
        (("schedule", "rings", "x", "--ranks", "2"), "'rings' is not a collective"),
        (("schedule", "ring", "x", "--ranks", "2", "--type", "int"), "--type: 'int' is not known"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    arguments: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert isinstance(done.exception, SpecError)
    assert problem in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_a_file_takes_the_place_of_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for written in (("generate", "fsdp", "gpt2"), ("schedule", "ring")):
        done = run(*written, str(tmp_path / "file" / "x.json"), "--ranks", "2")
        assert isinstance(done.exception, MissingRequirementError)
        assert f"cannot write {tmp_path / 'file'}" in str(done.exception)
    assert run("schedule", "ring", str(tmp_path / "folder" / "x.json"), "--ranks", "2").exit_code == 0


def record(directory: Path, **summary: Any) -> Path:
    """A record with another summary."""
    path = shutil.copytree("tests/records/version_4", directory / "record")
    document = json.loads((path / "summary.json").read_text())
    document["allreduce"] |= summary.pop("allreduce", {})
    (path / "summary.json").write_text(json.dumps({**document, **summary}))
    return path


def test_times_of_a_run_that_does_not_stand_are_not_exported(tmp_path: Path) -> None:
    invalid = record(tmp_path, outcome="invalid", reasons=["the machine computed too slowly"])
    done = run("export", str(invalid), str(tmp_path / "table"))
    assert isinstance(done.exception, SpecError)
    assert "the run is invalid, so its times are of this machine: the machine computed too slowly" in str(
        done.exception
    )
    assert not (tmp_path / "table").exists()


def test_times_of_exchanges_that_the_summary_does_not_give_are_not_exported(tmp_path: Path) -> None:
    withheld = record(tmp_path, allreduce={"time_s": None, "missing": "some of it may have been waiting for a core"})
    assert run("export", str(withheld), str(tmp_path / "table")).exit_code == 0
    table = read_trace(tmp_path / "table")
    assert not isinstance(table, Graph)
    assert {layer.communication_s for layer in table.layers} == {None}


@pytest.mark.parametrize("option", [("--batch-size", "64"), ("--device", "h100")])
def test_a_record_takes_no_other_batch_and_no_other_device(tmp_path: Path, option: tuple[str, str]) -> None:
    done = run("export", str(record(tmp_path)), str(tmp_path / "table"), *option)
    assert isinstance(done.exception, SpecError)
    assert "a record has the times and the batch that were run" in str(done.exception)


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.write_text("Id\tName\tForward\tBackward\tComm\tSize\n0\tconv[/x]\t1\t1\t-\t4000\n1\tfc[red]\t3\t1\t-\t4000\n")
    shown = run("show", str(table)).stdout
    assert "conv[/x]" in shown
    assert "fc[red]" in shown

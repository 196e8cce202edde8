import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.errors import SpecError
from testbed.store.compare import compare, records_of
from tests.cheap_runs import MANUAL_CHANGE

SOURCE = Path("tests/records/version_3")


def record(
    directory: Path, run_id: str, *, spec: dict[str, Any] | None = None, factor: float = 1.0, **changes: Any
) -> Path:
    """The fixture's run with other settings, and numbers so many times as large."""
    path = directory / f"quickstart-{run_id}"
    shutil.copytree(SOURCE, path)
    summary = json.loads((path / "summary.json").read_text())
    summary |= {"run_id": run_id, "started_at": f"2026-01-01T00:00:{run_id[1:]}", **changes}
    summary["samples_per_s"] /= factor
    resolved = yaml.safe_load((path / "spec.yaml").read_text())
    for dotted, value in (spec or {}).items():
        first, _, second = dotted.partition(".")
        if second:
            resolved[first][second] = value
        else:
            resolved[first] = value
    summary["spec_sha256"] = f"{abs(hash(str(spec))):x}"
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "spec.yaml").write_text(yaml.safe_dump(resolved))
    return path


RING: dict[str, Any] = {}
TREE = {"collective": {"kind": "tree", "segment_bytes": "1MiB"}, "link.rate": "1gbit"}


def turns(directory: Path, number: int, *, factor: float) -> list[Path]:
    made = []
    for index in range(number):
        wobble = 1 + 0.002 * (-1) ** index
        made.append(record(directory, f"a{2 * index:02d}", spec=RING))
        made.append(record(directory, f"b{2 * index + 1:02d}", spec=TREE, factor=factor * wobble))
    return made


def test_repetitions_of_two_settings_are_compared_in_pairs(tmp_path: Path) -> None:
    found = compare(turns(tmp_path, 3, factor=2.0), metric="samples_per_s")
    assert [setting.name for setting in found.settings] == [
        "collective=ring, link.rate=100mbit",
        "collective=tree, link.rate=1gbit",
    ]
    (difference,) = found.differences
    assert (difference.basis, difference.num_first, difference.num_second) == ("pairs", 3, 3)
    assert difference.ratio == pytest.approx(0.5, rel=0.005)
    assert difference.distinguishable
    assert found.notes == ()


def test_iterations_are_the_series_of_a_run(tmp_path: Path) -> None:
    found = compare([record(tmp_path, "a00"), record(tmp_path, "b01", spec=TREE)])
    time_s = found.settings[0].summaries[0].iteration_time_s
    assert time_s is not None
    assert [len(setting.values[0].values) for setting in found.settings] == [4, 4]
    assert found.settings[0].mean == pytest.approx(time_s.mean)
    assert found.differences[0].ratio == pytest.approx(1)
    assert any("one run of a setting" in note for note in found.notes)


def test_everything_that_degrades_runs_is_said_once_whoever_it_degrades(tmp_path: Path) -> None:
    """What communication's time is worth may be another run's reason than the first's, or its second."""
    waited = [
        f"w{rank} waited for a core, which may have lengthened communication by up to {each} %"
        for rank, each in ((7, 9), (0, 60))
    ]
    others = ["the hypervisor took 3.1 % of the CPU time", "w1 was stopped (SIGSTOP)"]
    first = record(tmp_path, "a00", outcome="degraded", reasons=[others[0], waited[0]])
    second = record(tmp_path, "b01", spec=TREE, outcome="degraded", reasons=[waited[1], others[1]])
    note = next(note for note in compare([first, second]).notes if "degraded" in note)
    assert note == f"2 of 2 runs are degraded: {others[0]}; {waited[1]}; {others[1]}"


def test_a_record_named_twice_counts_once(tmp_path: Path) -> None:
    first, second = turns(tmp_path, 1, factor=1.0)
    found = compare([first, second, first])
    assert [len(setting.values) for setting in found.settings] == [1, 1]


@pytest.mark.parametrize(
    ("changes", "spec", "what"),
    [
        ({"outcome": "invalid", "reasons": ["the links were slower"]}, TREE, "invalid.*the links were slower"),
        ({"outcome": "failed", "reasons": ["killed"]}, TREE, "failed.*killed"),
        ({"changes": [MANUAL_CHANGE.model_dump()]}, TREE, "b01: its links were changed manually while it ran"),
        ({}, {"workload": {"kind": "training", "model": "mlp"}}, "different questions: workload.model is cnn, mlp"),
    ],
)
def test_what_does_not_compare_is_refused_unless_forced(
    tmp_path: Path, changes: dict[str, Any], spec: dict[str, Any], what: str
) -> None:
    records = [record(tmp_path, "a00"), record(tmp_path, "b01", spec=spec, **changes)]
    with pytest.raises(SpecError, match=rf"(?s){what}.*--force"):
        compare(records)
    forced = compare(records, force=True)
    assert len(forced.settings) == 2
    assert forced.notes


def test_unlike_machines_are_not_mixed(tmp_path: Path) -> None:
    first, second = turns(tmp_path, 1, factor=1.0)
    path = second / "environment.json"
    path.write_text(path.read_text().replace('"num_cores": 2', '"num_cores": 64'))
    with pytest.raises(SpecError, match=r"different machines: .*64 cores"):
        compare([first, second])


def test_a_machine_of_which_fewer_cores_may_be_used_is_not_mixed_with_itself(tmp_path: Path) -> None:
    records = turns(tmp_path, 1, factor=1.0)
    documents = [json.loads((path / "environment.json").read_text()) for path in records]
    (records[0] / "environment.json").write_text(json.dumps({**documents[0], "num_usable_cores": 16}))
    assert len(compare(records).settings) == 2, "the other one does not say it"
    (records[1] / "environment.json").write_text(json.dumps({**documents[1], "num_usable_cores": 2}))
    with pytest.raises(SpecError, match="on a machine that was set otherwise: usable cores 16 or 2"):
        compare(records)


def programs(paths: list[Path], *digests: str) -> list[Path]:
    """The records, as those of such programs."""
    for path, digest in zip(paths, digests, strict=True):
        document = json.loads((path / "environment.json").read_text())
        (path / "environment.json").write_text(json.dumps({**document, "program_sha256": digest * 64}))
    return paths


def test_runs_of_a_script_that_has_changed_are_no_repetitions(tmp_path: Path) -> None:
    records = programs(turns(tmp_path, 2, factor=1.0), *"aaba")
    with pytest.raises(SpecError, match=r"collective=ring, .*: its runs are of 2 programs, no repetitions"):
        compare(records)
    assert len(compare(records, force=True).settings) == 2
    with pytest.raises(SpecError, match=r"the settings are of 2 programs, .*: what workload\.argv names has changed"):
        compare(programs(records, *"abab"))
    assert compare(programs(records, *"aaaa")).notes == ()


def test_runs_whose_spec_left_something_to_the_machine_that_was_decided_otherwise_are_no_repetitions(
    tmp_path: Path,
) -> None:
    records = turns(tmp_path, 2, factor=1.0)

    def decided(*values: dict[str, Any] | None) -> None:
        for path, value in zip(records, values, strict=True):
            document = json.loads((path / "environment.json").read_text())
            document.pop("decided", None)
            document |= {} if value is None else {"decided": value}
            (path / "environment.json").write_text(json.dumps(document))

    netem, nfqueue = {"delay_backend": "netem"}, {"delay_backend": "nfqueue"}
    decided(netem, netem, nfqueue, netem)
    with pytest.raises(
        SpecError, match=r"collective=ring, .*: its runs are no repetitions: delay_backend was .* netem or nfqueue"
    ):
        compare(records)
    decided({"dilation": 1.0}, {"dilation": 2.0}, {"dilation": 1.0}, {"dilation": 2.0})
    assert compare(records).notes == (), "each setting has its own"
    decided(netem, netem, None, None)
    assert compare(records).notes == (), "records did not say it"


def test_delays_that_another_backend_made_are_said_where_no_setting_requests_it(tmp_path: Path) -> None:
    """After `modprobe sch_netem` a machine is no other machine."""

    def notes(directory: Path, spec: dict[str, Any], *backends: str | None) -> tuple[str, ...]:
        records = [
            record(directory, f"a{number:02}", spec=RING if number % 2 else spec) for number in range(len(backends))
        ]
        for path, backend in zip(records, backends, strict=True):
            document = json.loads((path / "environment.json").read_text())
            (path / "environment.json").write_text(json.dumps({**document, "decided": {"delay_backend": backend}}))
        return compare(records).notes

    (note,) = notes(tmp_path / "auto", TREE, "netem", "nfqueue", "netem", "nfqueue")
    assert note.startswith("link.backend: auto was decided to be netem or nfqueue")
    requested = {"link.backend": "netem"}
    assert notes(tmp_path / "requested", requested, "netem", "nfqueue", "netem", "nfqueue") == (), (
        "that is the difference"
    )
    assert notes(tmp_path / "none", TREE, None, "netem", None, "netem") == (), "one has no delays"


def test_a_script_before_and_after_a_change_are_two_settings(tmp_path: Path) -> None:
    records = programs([record(tmp_path, f"a{number:02}") for number in range(4)], *"abab")
    assert [setting.name for setting in compare(records).settings] == ["quickstart aaaaaaaa", "quickstart bbbbbbbb"]


def test_an_image_before_and_after_it_was_built_again_are_two_settings(tmp_path: Path) -> None:
    def images(paths: list[Path], *digests: str) -> list[Path]:
        for path, digest in zip(paths, digests, strict=True):
            document = json.loads((path / "environment.json").read_text())
            runtime = {"kind": "docker", "image_id": f"sha256:{digest * 64}"}
            (path / "environment.json").write_text(json.dumps({**document, "runtime": runtime}))
        return paths

    records = images([record(tmp_path / "one", f"a{number:02}") for number in range(4)], *"abab")
    assert [setting.name for setting in compare(records).settings] == ["quickstart aaaaaaaa", "quickstart bbbbbbbb"]
    records = images(turns(tmp_path / "two", 2, factor=1.0), *"aaba")
    with pytest.raises(SpecError, match=r"collective=ring, .*: its runs are of 2 images, no repetitions"):
        compare(records)


def test_versions_differ_where_their_code_does(tmp_path: Path) -> None:
    records = turns(tmp_path, 2, factor=1.0)
    for number, path in enumerate(records):
        document = json.loads((path / "environment.json").read_text()) | {"commit": f"c{number}", "code_sha256": "a"}
        (path / "environment.json").write_text(json.dumps(document))
    assert compare(records).notes == (), "commits that change no code"
    document["packages"]["torch"] = "0.0"
    (records[3] / "environment.json").write_text(json.dumps(document))
    assert compare(records).notes == ("the runs were made by 2 versions of the testbed or its packages",)


def test_longer_runs_answer_the_same_question(tmp_path: Path) -> None:
    workload = yaml.safe_load((SOURCE / "spec.yaml").read_text())["workload"]
    found = compare(
        [record(tmp_path, "a00"), record(tmp_path, "b01", spec={"workload": {**workload, "iterations": 99}})]
    )
    assert [setting.name for setting in found.settings] == ["workload.iterations=4", "workload.iterations=99"]


def replayed(directory: Path, run_id: str, file: str, graph: str, **spec: Any) -> Path:
    trace = {"file": file, "graph": graph}
    return record(directory, run_id, spec={"workload": {"kind": "replay", "trace": trace}, **spec})


def test_graphs_are_named_by_their_files_and_not_shown_whole(tmp_path: Path) -> None:
    records = [replayed(tmp_path, "a00", "fsdp.json", "f" * 10_000), replayed(tmp_path, "b01", "pp.json", "p" * 10_000)]
    with pytest.raises(SpecError, match=r"workload.trace.graph is fsdp.json \(\w{8}\), pp.json \(\w{8}\)") as caught:
        compare(records)
    assert len(str(caught.value)) < 300
    first, second = (setting.name for setting in compare(records, force=True).settings)
    assert first.startswith("workload.trace.graph=fsdp.json (")
    assert second.startswith("workload.trace.graph=pp.json (")
    assert max(len(first), len(second)) < 60


def test_the_same_graph_elsewhere_is_no_other_question(tmp_path: Path) -> None:
    graph = "g" * 10_000
    records = [
        replayed(tmp_path, "a00", "fsdp.json", graph),
        replayed(tmp_path, "b01", "/tmp/fsdp.json", graph, **{"link.rate": "1gbit"}),
    ]
    assert [setting.name for setting in compare(records).settings] == ["link.rate=100mbit", "link.rate=1gbit"]


def test_long_values_differ_by_a_digest(tmp_path: Path) -> None:
    argv = ["x" * 300]
    workloads = [{"kind": "command", "argv": [*argv, last]} for last in "ab"]
    records = [record(tmp_path, f"a0{at}", spec={"workload": each}) for at, each in enumerate(workloads)]
    names = [setting.name for setting in compare(records, force=True).settings]
    assert len(set(names)) == 2
    assert all(name.startswith("workload.argv=['xxx") and len(name) < 250 for name in names)


def test_one_setting_is_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nothing to compare"):
        compare([record(tmp_path, "a00"), record(tmp_path, "a01")])


def test_a_run_without_the_number_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="has no command_time_s"):
        compare(turns(tmp_path, 1, factor=1.0), metric="command_time_s", force=True)


def test_operands_are_records_sweeps_and_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = turns(tmp_path, 1, factor=1.0)
    sweep = tmp_path / "quickstart-sweep-00"
    sweep.mkdir()
    runs = [{"record": f"elsewhere/{path.name}"} for path in (first, second)]
    (sweep / "sweep.json").write_text(json.dumps({"points": [{"runs": [run]} for run in runs]}))
    assert records_of([str(sweep)], output=tmp_path) == [first, second], "moved together with its records"
    with monkeypatch.context() as inside:
        inside.chdir(sweep)
        assert records_of(["."], output=tmp_path) == [first, second]
    assert records_of([str(second), "a0", str(second)], output=tmp_path) == [second, first]
    for operand, what in (
        (str(tmp_path), "neither a record nor a sweep"),
        ("zz", "no run below"),
        (str(empty(tmp_path)), "has no runs yet"),
        (str(cut(tmp_path)), "cannot be read"),
        ("a" * 300, "no run below"),
    ):
        with pytest.raises(SpecError, match=what):
            records_of([operand], output=tmp_path)


def empty(directory: Path) -> Path:
    path = directory / "empty-sweep-00"
    path.mkdir()
    (path / "sweep.json").write_text('{"points": []}')
    return path


def cut(directory: Path) -> Path:
    path = directory / "cut-sweep-00"
    path.mkdir()
    (path / "sweep.json").write_text('{"points": [')
    return path

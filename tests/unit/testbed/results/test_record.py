"""What is written is read back; what is not a record is refused in words."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

from testbed.errors import EnvironmentLacksError, SpecError
from testbed.results.record import LINK_SCHEMA, Record, RecordWriter, Summary, iteration_parts, load

Make = Callable[..., Record]


def link_row(at_s: float) -> dict[str, object]:
    numbers = dict.fromkeys(
        ["class_bytes", "class_packets", "drops", "overlimits", "backlog_bytes", "interface_bytes"], 7
    )
    return {"at_s": at_s, "link": "w0-s0", "node": "w0", "port": "w0-eth0", "rate_bps": 1e8, **numbers}


def test_a_record_is_read_back_as_it_was_written(record: Make) -> None:
    loaded = record()
    assert loaded.summary == Summary.model_validate_json((loaded.path / "summary.json").read_text())
    assert loaded.spec_yaml.startswith("name: quickstart")
    assert loaded.plan == {"nodes": ["w0", "s0"]}
    assert loaded.environment["cpu"]["num_cores"] == 2
    assert loaded.iterations.height == 4 * (8 + 3 + 30)
    assert loaded.buckets.height == 4 * 4 * (3 + 30)
    assert dict(loaded.links.schema) == LINK_SCHEMA
    assert (loaded.path / "logs").is_dir()
    assert not list(loaded.path.glob(".*")), "no temporary file is left"


def test_summary_json_keeps_the_contract_for_scripts(record: Make) -> None:
    summary = json.loads((record().path / "summary.json").read_text())
    promised = {
        "schema_version", "run_id", "outcome", "reasons", "num_workers", "num_iterations", "dilation",
        "iteration_time_s", "compute_time_s", "exposed_communication_s", "samples_per_s", "scaling_factor", "loss",
        "parameters_sha256", "workers", "links", "allreduce", "record",
    }  # fmt: skip
    assert promised <= summary.keys()
    assert summary["iteration_time_s"].keys() == {"median", "p10", "p90"}
    assert summary["loss"].keys() == {"first", "last", "end"}
    assert summary["allreduce"].keys() == {"size_bytes", "time_s", "bound_s", "predicted_s", "bottleneck"}
    assert {
        "name", "from", "to", "rate_bps", "delay_s", "measured_rate_bps", "measured_delay_s", "bytes",
        "expected_bytes", "utilization_mean", "utilization_busy", "drops",
    } <= summary["links"][0].keys()  # fmt: skip


def test_rows_reach_the_disk_before_the_run_ends(tmp_path: Path) -> None:
    now_s = 0.0
    writer = RecordWriter(tmp_path, now_s=lambda: now_s)
    writer.append_links([link_row(0.1)])
    assert not (tmp_path / "links.parquet").exists()
    now_s = 6.0
    writer.append_links([link_row(0.2)])
    assert pl.read_parquet(tmp_path / "links.parquet")["at_s"].to_list() == [0.1, 0.2]
    now_s = 12.0
    writer.append_links([link_row(0.3)])
    assert pl.read_parquet(tmp_path / "links.parquet").height == 3


def test_looking_at_a_frame_does_not_keep_it_from_the_disk(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.append_links([link_row(0.1)])
    assert writer.frame("links").height == 1
    writer.flush()
    assert pl.read_parquet(tmp_path / "links.parquet").height == 1


def test_extra_columns_are_left_out_and_missing_ones_refused(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.append_links([link_row(0.1) | {"rate_bps": 1e8}])
    assert writer.frame("links").columns == list(LINK_SCHEMA)
    with pytest.raises(KeyError, match="rank"):
        writer.append_iterations([{"phase": "measured"}])


def test_a_run_that_ended_early_still_makes_a_whole_record(tmp_path: Path, record: Make) -> None:
    writer = RecordWriter(tmp_path / "early")
    writer.write_spec("name: early\n")
    writer.finish(record().summary)
    early = load(tmp_path / "early")
    assert early.calibration == {}
    assert early.iterations.is_empty()


def test_what_is_not_a_record_is_refused_in_words(tmp_path: Path, record: Make) -> None:
    with pytest.raises(SpecError, match="no such directory"):
        load(tmp_path / "nowhere")
    with pytest.raises(SpecError, match="is not a record: it has neither"):
        load(tmp_path)
    whole = record()
    (whole.path / "links.parquet").unlink()
    (whole.path / "plan.json").unlink()
    with pytest.raises(SpecError, match=r"plan\.json, links\.parquet missing"):
        load(whole.path)
    (whole.path / "summary.json").unlink()
    with pytest.raises(SpecError, match=r"did not finish .*logs"):
        load(whole.path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("plan.json", "{", r"plan\.json cannot be read"),
        ("plan.json", "[]", "holds no JSON object"),
        ("plan.json", b"\xff\xfe", r"plan\.json cannot be read"),
        ("spec.yaml", b"\xff\xfe", r"spec\.yaml cannot be read"),
        ("links.parquet", "not parquet", r"links\.parquet cannot be read"),
        ("summary.json", '{"schema_version": 99}', "schema_version is 99; this version reads 1"),
        ("summary.json", '{"schema_version": 1}', r"summary\.json: name: Field required"),
    ],
)
def test_damage_is_named(record: Make, name: str, content: str | bytes, message: str) -> None:
    path = record().path
    (path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SpecError, match=message):
        load(path)


def test_a_file_system_that_refuses_is_named(tmp_path: Path, record: Make) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentLacksError, match=r"cannot write .*file/record: Not a directory"):
        RecordWriter(tmp_path / "file" / "record")
    writer = RecordWriter(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(EnvironmentLacksError, match=r"gone/spec\.yaml: No such file"):
        writer.write_spec("name: x\n")
    with pytest.raises(EnvironmentLacksError, match=r"gone/iterations\.parquet: "):
        writer.finish(record().summary)


def test_frames_of_another_kind_are_refused(record: Make) -> None:
    path = record().path
    pl.DataFrame({"x": [1]}).write_parquet(path / "links.parquet")
    with pytest.raises(SpecError, match="other columns"):
        load(path)


def test_an_iterations_parts_have_no_gaps_and_what_forward_waits_for_is_exposed(record: Make) -> None:
    row = next(record().iterations.iter_rows(named=True))
    for stall_s in (0.0, 0.25 * (row["forward_end_s"] - row["start_s"])):
        parts = sorted(iteration_parts({**row, "forward_stall_s": stall_s}), key=lambda part: part[1])
        assert (parts[0][1], parts[-1][2]) == (row["start_s"], row["end_s"])
        assert all(before[2] == after[1] for before, after in pairwise(parts))
        inside = [end_s - begin_s for name, begin_s, end_s in parts if name == "exposed communication"]
        assert sum(inside) == pytest.approx(stall_s + row["backward_end_s"] - row["backward_compute_end_s"])

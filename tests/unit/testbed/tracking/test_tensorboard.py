"""Read back by TensorBoard's own reader."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from testbed.errors import MissingRequirementError
from testbed.record.reader import load
from testbed.tracking.numbers import tracked
from testbed.tracking.tensorboard import VERDICT, write
from tests.unit.testbed.tracking.test_numbers import RECORD, judged


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def test_everything_is_read_back(tmp_path: Path) -> None:
    run = tracked(load(RECORD))
    assert write(run, str(tmp_path))
    found = read(tmp_path / run.run_name)
    assert set(found.Tags()["scalars"]) == {*run.series, *run.totals}
    for name, values in run.series.items():
        events = found.Scalars(name)
        assert [event.step for event in events] == [each.step for each in values]
        assert [event.value for event in events] == pytest.approx([each.value for each in values], rel=1e-6)
        assert [event.wall_time for event in events] == pytest.approx([each.at_s for each in values])
    assert found.Scalars("run/scaling_factor")[0].value == pytest.approx(run.totals["run/scaling_factor"])
    (verdict,) = found.Tensors(VERDICT)
    assert b"**testbed.outcome**: valid" in verdict.tensor_proto.string_val[0]


def test_settings_are_hyperparameters(tmp_path: Path) -> None:
    run = tracked(load(RECORD))
    write(run, str(tmp_path))
    content = read(tmp_path / run.run_name).summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["link.rate"].string_value == "100mbit"
    assert settings["workers"].number_value == 4


def test_numbers_that_do_not_stand_are_named_so(tmp_path: Path) -> None:
    run = tracked(judged(tmp_path, "invalid", "the links were slower"))
    write(run, str(tmp_path / "events"))
    found = read(tmp_path / "events" / run.run_name)
    assert found.Tags()["scalars"]
    assert all(name.startswith("invalid/") for name in found.Tags()["scalars"])
    assert b"the links were slower" in found.Tensors(VERDICT)[0].tensor_proto.string_val[0]


def test_a_run_is_written_once_and_what_was_cut_short_is_written_again(tmp_path: Path) -> None:
    run = tracked(load(RECORD))
    (tmp_path / f".{run.run_name}.new").mkdir()
    (tmp_path / f".{run.run_name}.new" / "events.out.tfevents.1.x").write_bytes(b"half")
    assert write(run, str(tmp_path))
    assert not write(run, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [run.run_name]
    assert len(list((tmp_path / run.run_name).iterdir())) == 1


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingRequirementError, match="cannot write"):
        write(tracked(load(RECORD)), str(tmp_path / "file"))

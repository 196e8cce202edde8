"""TensorBoard: an event file for each run, in a folder of its record's name.

Scalars of iterations have the iteration as their step and the time at which it was over; those of the whole run have
step 0. The spec is in the HParams plugin, the verdict in the Text plugin.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from testbed.errors import MissingRequirementError
from testbed.tracking.numbers import Tracked

VERDICT: Final = "testbed/verdict"


def write(run: Tracked, place: str) -> bool:
    """Write a run to a directory; False where it is there already. Raises MissingRequirementError."""
    folder = Path(place) / run.run_name
    if folder.exists():
        return False
    partial = folder.with_name(f".{folder.name}.new")  # a run that is cut short is not taken for written
    try:
        shutil.rmtree(partial, ignore_errors=True)
        writer = EventFileWriter(str(partial))
        for event in _events(run):
            writer.add_event(event)
        writer.close()
        partial.replace(folder)
    except OSError as failure:
        raise MissingRequirementError(f"cannot write {folder}: {failure.strerror or failure}") from failure
    return True


def _events(run: Tracked) -> Iterator[Event]:
    settings = hparams.hparams_pb(dict(run.parameters), trial_id=run.run_name, start_time_secs=run.began_s)
    yield Event(wall_time=run.began_s, summary=settings)
    yield _text(VERDICT, "  \n".join(f"**{name}**: {value}" for name, value in run.tags.items()), run.ended_s)
    for name, value in run.totals.items():
        yield _scalar(name, 0, run.ended_s, value)
    for name, values in run.series.items():
        for each in values:
            yield _scalar(name, each.step, each.at_s, each.value)


def _scalar(name: str, step: int, at_s: float, value: float) -> Event:
    return Event(wall_time=at_s, step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))


def _text(name: str, text: str, at_s: float) -> Event:
    metadata = create_summary_metadata(display_name=name, description="")
    value = Summary.Value(tag=name, metadata=metadata, tensor=make_tensor_proto(text))
    return Event(wall_time=at_s, step=0, summary=Summary(value=[value]))

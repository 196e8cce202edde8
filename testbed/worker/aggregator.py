"""The process of an aggregator: `python -m testbed.worker.aggregator CONFIGURATION`, in its node's namespace.

Says "ready", then answers each line "counters" or "status" on its standard input by writing them to a file and saying
"changed counters", and "reset:0" by beginning another epoch of job 0. It ends with its standard input, and with a
message when its data plane does.
"""

import json
import os
import secrets
import select
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from switch_agg import clock
from switch_agg.dataplanes.base import DataPlane, Program, data_plane
from switch_agg.errors import JobError
from switch_agg.job import Job
from switch_agg.namespaces import in_network_of
from switch_agg.status import settled, status_of, to_json
from switch_agg.wire import PORTS

GENERATION_BITS = 32
CHECK_INTERVAL_S = 0.5
MAX_LOOKS = 200
"""At its counters, 10 ms apart, while packets come: 128 chunks take 1.1 s at 1 Mbit/s."""
_READ_BYTES = 65_536


class AggregatorConfiguration(BaseModel):
    """Everything an aggregator is given when it starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataplane: str
    address: str
    jobs: tuple[Job, ...]
    """All with chunks of the same size, and slots of their own."""
    switch_pid: int
    """A process that holds the switch's namespaces."""
    switch_interface: str
    """The switch's end of the link to the address."""
    counters_path: Path
    status_path: Path
    dilation: float = 1.0
    """How many times slower its timers run."""


def open_plane(configuration: AggregatorConfiguration) -> DataPlane:
    """Serving its jobs. Raises what the data plane raises."""
    local, generation = (configuration.address, PORTS.start), secrets.randbits(GENERATION_BITS)
    plane = data_plane(configuration.dataplane).open(
        local,
        generation=generation,
        epochs=None,
        program=Program(
            num_elements=configuration.jobs[0].num_elements,
            payload=configuration.jobs[0].payload,
            num_slots=max(job.first_slot + job.num_slots for job in configuration.jobs),
            switch=partial(in_network_of, configuration.switch_pid),
            interface=configuration.switch_interface,
        ),
    )
    for job in configuration.jobs:
        plane.configure(job)
    return plane


def write_counters(plane: DataPlane, path: Path, *, num_looks: int = MAX_LOOKS) -> None:
    """And which of the identities between them does not hold, and for whom the first job's chunks waited: once the
    packets have come that jobs which have ended left in their links."""
    violations = settled(plane, num_looks=num_looks)
    if violations is None:
        violations = ["packets still come after all jobs have ended, so nobody knows whether its counters add up"]
    found = {
        "counters": asdict(plane.counters()),
        "violations": violations,
        "stragglers": asdict(plane.stragglers(plane.jobs[0].number)),
    }
    path.write_text(json.dumps(found))


def main(configuration_json: str) -> None:
    """Serve until standard input ends. Raises what ended the data plane."""
    configuration = AggregatorConfiguration.model_validate_json(configuration_json)
    clock.dilate(configuration.dilation)
    plane, since_s = open_plane(configuration), clock.now_s()
    _say("ready")
    for line in _lines(plane):
        word, _, argument = line.partition(":")
        try:
            if word == "status":
                address = (configuration.address, PORTS.start)
                status = status_of(plane, name=configuration.dataplane, address=address, since_s=since_s)
                configuration.status_path.write_text(to_json(status))
            elif word == "reset":
                plane.reset(int(argument))
            else:
                write_counters(plane, configuration.counters_path)
        except JobError as error:
            _say(f"refused {error}")
        else:
            _say(f"changed {word}")
    plane.close()


def _lines(plane: DataPlane) -> Iterator[str]:
    """Of standard input until its end, looking after the plane meanwhile. Read without a buffer of Python's, in which
    select(2) would not see the second of two lines."""
    begun = b""
    while True:
        plane.check()
        if not select.select([sys.stdin], [], [], CHECK_INTERVAL_S)[0]:
            continue
        if not (found := os.read(sys.stdin.fileno(), _READ_BYTES)):
            return
        *lines, begun = (begun + found).split(b"\n")
        yield from (line.decode().strip() for line in lines)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])

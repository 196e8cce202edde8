import json
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from testbed.traces.networks import NetworkName, network
from testbed.traces.recorded import RecordedDevice, recorded_table

EVERY = [(device, name) for device in get_args(RecordedDevice) for name in get_args(NetworkName)]
FOLDER = Path("testbed/traces/recordings")


def sizes(device: str, name: str) -> list[int]:
    found: list[int] = json.loads((FOLDER / f"{device}-{name}.json").read_text())["batch_sizes"]
    return found


def test_there_is_a_recording_of_every_network_on_every_device_and_no_other() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{device}-{name}.json" for device, name in EVERY}


@pytest.mark.parametrize(("device", "name"), EVERY)
def test_a_recording_is_of_the_network_that_the_testbed_knows(device: RecordedDevice, name: NetworkName) -> None:
    for batch_size in sizes(device, name):
        table = recorded_table(name, device=device, batch_size=batch_size)
        assert table.size_bytes == 4 * sum(layer.num_parameters for layer in network(name))
        assert table.batch_size == batch_size
        assert table.recorded_on.startswith("NVIDIA H100")
        assert ("bfloat16" in table.recorded_on) == (device == "h100_bf16")
        assert all(layer.forward_s > 0 for layer in table.layers)
        assert all(layer.backward_s >= 0 for layer in table.layers)
        assert min(table.update_s, table.host_to_device_s) > 0


@pytest.mark.parametrize(("device", "name"), EVERY)
def test_between_two_batch_sizes_times_are_on_the_line(device: RecordedDevice, name: NetworkName) -> None:
    for small, large in pairwise(sizes(device, name)):
        low, high = (recorded_table(name, device=device, batch_size=size) for size in (small, large))
        between = (small + large) // 2
        share = (between - small) / (large - small)
        found = recorded_table(name, device=device, batch_size=between)
        assert found.compute_s == pytest.approx(low.compute_s + share * (high.compute_s - low.compute_s))
        assert found.host_to_device_s == pytest.approx(
            low.host_to_device_s + share * (high.host_to_device_s - low.host_to_device_s)
        )
        assert found.recorded_on.endswith(f", between batches of {small} and {large}")


@pytest.mark.parametrize("name", ["resnet50", "resnet101", "vgg16", "gpt2"])
def test_the_line_is_near_what_was_recorded_where_the_device_is_busy(name: NetworkName) -> None:
    """Of three batch sizes in a row, the middle one lies on the line between the others."""
    largest = sizes("h100", name)[-3:]
    low, middle, high = (recorded_table(name, device="h100", batch_size=size).compute_s for size in largest)
    share = (largest[1] - largest[0]) / (largest[2] - largest[0])
    assert low + share * (high - low) == pytest.approx(middle, rel=0.05)


def test_a_batch_beyond_what_was_recorded_is_refused() -> None:
    for batch_size in (0, 33):
        with pytest.raises(
            ValueError, match=rf"^batch_size: gpt2 was recorded on h100 with 1 to 32 samples \(got {batch_size}"
        ):
            recorded_table("gpt2", device="h100", batch_size=batch_size)

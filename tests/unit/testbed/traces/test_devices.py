from typing import get_args

from testbed.commands import traces as commands
from testbed.traces.derived import derived_table
from testbed.traces.devices import DEVICE_NAMES, network_table, source_text
from testbed.traces.recorded import recorded_table


def test_a_table_is_derived_or_recorded() -> None:
    assert network_table("vgg16") == derived_table("vgg16", device="v100", batch_size=32)
    assert network_table("vgg16", device="h100", batch_size=8) == recorded_table("vgg16", device="h100", batch_size=8)


def test_where_times_are_from_is_said() -> None:
    derived = derived_table("gpt2")
    assert source_text("resnet50", "v100", derived).startswith("derived from that device's totals; Zhang et al. 2020")
    assert source_text("gpt2", "v100", derived).startswith("derived from the rate of ResNet-50 there; ")
    recorded = recorded_table("gpt2", device="h100_bf16", batch_size=12)
    assert source_text("gpt2", "h100_bf16", recorded).startswith("recorded on NVIDIA H100")


def test_commands_know_every_device() -> None:
    """They name what there is without importing it."""
    given = get_args(get_args(commands.Device)[0])  # of `Literal[...] | None`
    assert {name for each in given for name in get_args(each)} == set(DEVICE_NAMES)

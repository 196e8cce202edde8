"""What networks take on which device: derived of what somebody published, or recorded."""

from typing import Final, get_args

from testbed.traces.derived import DEVICES, DerivedDevice, derived_table
from testbed.traces.networks import NetworkName
from testbed.traces.recorded import RecordedDevice, recorded_table
from testbed.traces.table import LayerTable

DeviceName = DerivedDevice | RecordedDevice
DEVICE_NAMES: Final[tuple[DeviceName, ...]] = (*get_args(DerivedDevice), *get_args(RecordedDevice))
DEFAULT_DEVICE: Final[DeviceName] = "v100"
DEFAULT_BATCH_SIZE: Final = 32


def network_table(
    name: NetworkName, *, device: DeviceName = DEFAULT_DEVICE, batch_size: int = DEFAULT_BATCH_SIZE
) -> LayerTable:
    """One iteration of a network on a device. Raises ValueError for a batch size of which nothing is known there."""
    if device == "v100":
        return derived_table(name, device=device, batch_size=batch_size)
    return recorded_table(name, device=device, batch_size=batch_size)


def source_text(name: NetworkName, device: DeviceName, table: LayerTable) -> str:
    """Where the times of a network's table are from: `recorded on NVIDIA H100 80GB HBM3, torch 2.11.0+cu130`."""
    if device == "v100":
        measured = "that device's totals" if name in DEVICES[device].totals else "the rate of ResNet-50 there"
        return f"derived from {measured}; {DEVICES[device].source}"
    return f"recorded on {table.recorded_on}"

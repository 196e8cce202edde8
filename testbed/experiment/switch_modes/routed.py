"""Switches forward at layer 3: queues and incast behave as they do in reality."""

from typing import ClassVar

from testbed.experiment.switch_modes.base import SWITCH_MODES, SwitchMode


@SWITCH_MODES.register
class Routed(SwitchMode):
    """Every port is a subnet of its own, and flows choose among equal paths by a hash."""

    layout: ClassVar[str] = "testbed.plan.addressing:routed"
    routes: ClassVar[bool] = True
    across_machines: ClassVar[bool] = True

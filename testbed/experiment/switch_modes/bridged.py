"""Switches forward at layer 2, without loops: the sender's own limits reach into the switches' queues."""

from typing import ClassVar

from testbed.experiment.switch_modes.base import SWITCH_MODES, SwitchMode


@SWITCH_MODES.register
class Bridged(SwitchMode):
    """Every switch is a bridge with a static table in one subnet."""

    layout: ClassVar[str] = "testbed.plan.bridging:bridged"
    routes: ClassVar[bool] = False

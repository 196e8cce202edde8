"""How switches forward: options; what gives nodes their addresses and paths is the layout that each names."""

from typing import ClassVar, Final

from transports.registry import Options, Registry


class SwitchMode(Options):
    """A value on the switch axis."""

    layout: ClassVar[str]
    """`module:function`, called as testbed.plan.forwarding.Layout when a plan is made, and imported only then."""
    routes: ClassVar[bool]
    """Whether switches have addresses that packets can be routed to, and netfilter sees what they forward; if not, they
    pass frames on."""
    across_machines: ClassVar[bool] = False
    """Whether nodes of one run may be on several machines with it: it has been made to work there, and tried."""


SWITCH_MODES: Final[Registry[SwitchMode]] = Registry("switch", "testbed.experiment.switch_modes")

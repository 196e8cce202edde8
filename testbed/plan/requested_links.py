"""What is requested of links, now and over time, and which delay backends can do all of it. Pure."""

from collections.abc import Callable, Collection, Sequence

from testbed.experiment.changes import LinkChange, ScheduledChange, TracedChange, timeline
from testbed.experiment.delay_backends.base import delay_backends
from testbed.experiment.link import BackendName
from testbed.plan.link_configuration import LinkConfig, changed_links


def requested_over_time(
    requested: Sequence[LinkConfig], changes: Sequence[ScheduledChange | TracedChange], *, packet_bytes: int
) -> list[LinkConfig]:
    """Every configuration that the directions ever have, what holds at the start first: beside each change of the
    schedule every value of a trace that repeats, which will come round again.

    Raises SpecError, naming the change, when one names no link or requests what cannot be.
    """
    found = {(each.hop, each.spec): each for each in requested}

    def changed(now: Sequence[LinkConfig], change: LinkChange) -> Sequence[LinkConfig]:
        after = changed_links(now, change.link, change.settings, change.key, packet_bytes=packet_bytes)
        for each in after:
            found.setdefault((each.hop, each.spec), each)
        return after

    repeating = [
        LinkChange(at_s=0.0, link=change.link, settings=change.settings(value), source="trace", key=f"changes.{index}")
        for index, change in enumerate(changes)
        if isinstance(change, TracedChange) and change.repeats
        for value in change.values
    ]
    now: Sequence[LinkConfig] = requested
    for change in timeline(changes, endless=False):
        now = changed(now, change)
        if change.source == "schedule":
            for each in repeating:
                changed(now, each)
    return list(found.values())


def able(requested: Collection[LinkConfig], *, superframes: bool, bridged: bool) -> list[BackendName]:
    """The backends that can do all that these links request, the preferred first."""
    return [
        name for name in delay_backends() if not _reasons(requested, name, superframes=superframes, bridged=bridged)
    ]


def unsupported(
    requested: Collection[LinkConfig],
    backend: BackendName,
    *,
    superframes: bool,
    bridged: bool,
    works: Callable[[BackendName], bool] = lambda _: True,
) -> list[str]:
    """Why the backend cannot do what links request, `key: reason`, with those that can and work; empty when it can."""
    found = _reasons(requested, backend, superframes=superframes, bridged=bridged)
    others = [name for name in able(requested, superframes=superframes, bridged=bridged) if works(name)]
    instead = f"; link.backend={' or '.join(others)} can" if others else ""
    return [f"{key}: {reason}{instead}" for key, reason in found.items()]


def _reasons(
    requested: Collection[LinkConfig], backend: BackendName, *, superframes: bool, bridged: bool
) -> dict[str, str]:
    found: dict[str, str] = {}
    if bridged and not delay_backends()[backend].sees_frames:
        found["switch"] = f"{backend} delays packets that are routed and never sees what a bridge passes on; set routed"
    for each in requested:
        found |= {each.key(key): reason for key, reason in delay_backends()[backend].unsupported(each.spec).items()}
        if superframes and each.spec.draws and not delay_backends()[backend].cuts_superframes:
            found["packet_mode"] = (
                f"{backend} would draw once for a whole super-frame of some forty packets; set packet_mode: mtu"
            )
    return found

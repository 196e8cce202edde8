"""What was run, in a line: the choices on every axis, as a plan, a result in the terminal and a report say it."""

from collections.abc import Iterator
from typing import Final

from testbed.experiment.experiment import Experiment
from testbed.experiment.link import LinkSpec
from testbed.record import number_text
from transports.registry import Options
from transports.units import format_size

SEPARATOR: Final = " · "


def setup_text(experiment: Experiment) -> str:
    """`star · 100 Mbit/s, 1 ms · ring over tcp · buckets of 1 MiB · compressed by top_k (ratio 0.01)`."""
    return SEPARATOR.join(_parts(experiment))


def exchange_text(experiment: Experiment) -> str:
    """Who sends what to whom, and how: `ring over tcp (streams 4)`, or a baseline library."""
    if experiment.stack is not None:
        return value_text(experiment.stack)
    return f"{value_text(experiment.collective)} over {value_text(experiment.channel)}"


def value_text(value: Options) -> str:
    """A value of an axis with those of its options that are not at their defaults."""
    options = value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    words = ", ".join(f"{name} {_option(given)}" for name, given in options.items() if name != "kind")
    return f"{value.kind} ({words})" if words else value.kind


def _option(given: object) -> str:
    return "..." if isinstance(given, dict | list) else str(given).lower() if isinstance(given, bool) else str(given)


def _parts(experiment: Experiment) -> Iterator[str]:
    yield value_text(experiment.topology)
    link = "links as the topology says" if experiment.topology.sets_rates else _link(experiment.link)
    yield link + (", some links differ" if experiment.links else "")
    if experiment.packet_mode != "superframe":
        mode = experiment.packet_mode
        yield f"packet mode {mode if isinstance(mode, str) else format_size(mode)}"
    workload = experiment.workload
    if workload.gradient_shapes():
        yield exchange_text(experiment)
        yield experiment.fusion.text
    elif workload.command is not None and workload.command.backend is not None:
        yield exchange_text(experiment)
    if experiment.compression.compresses:
        yield f"compressed by {value_text(experiment.compression)}"
    if experiment.synchronisation.text is not None:
        yield experiment.synchronisation.text
    if experiment.changes:
        yield "links change"
    if experiment.storage is not None:
        yield f"storage {value_text(experiment.storage)}"
    if experiment.background:
        yield "background traffic"
    if experiment.runtime != Experiment.model_fields["runtime"].get_default(call_default_factory=True):
        yield value_text(experiment.runtime)


def _link(link: LinkSpec) -> str:
    words = [number_text.rate_text(link.rate_bps)]
    words += [number_text.time_text(link.delay_s)] if link.delay_s > 0 else []
    words += ["lossy"] if link.loss != 0 else []
    return ", ".join(words)

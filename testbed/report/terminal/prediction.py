"""A prediction as a person reads it, and as a script does."""

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from testbed.plan.plan import Plan
from testbed.record.number_text import percent_text, size_text, time_text
from testbed.report.terminal.notes import render_notes
from testbed.report.wording import costs_text, reach_text
from testbed.theory.predict import ExchangePrediction, IterationPrediction
from testbed.theory.reach import Expected
from transports.collectives.costs import Costs

_NUM_LINKS: Final = 8
_NO_CODEC: Final = "the codec's time is not in the prediction: it is measured with torch, which is not installed here"
_DECIDES: Final = {
    "computing": "computing",
    "input": "reading and copying the input",
    "cycles": "the fusion engine's cycles, in which gradients wait",
    "links": "the rate of the links",
    "latency": "propagation along the links",
    "hosts": "what messages cost hosts",
}


def prediction_json(found: IterationPrediction, plan: Plan, expected: Expected | None) -> dict[str, Any]:
    """For scripts: times in virtual seconds; `codec_s` is null where the codec's time is not known, and not in the
    prediction, and `expected_error` is the mean magnitude, null where nothing was compared,
    or the experiment lies outside what was."""
    return {
        "kind": "predicted",
        "dilation": plan.clock.dilation,
        "dilation_reason": plan.dilation_reason,
        "iteration_time_s": found.iteration_time_s,
        "parts": {
            "compute_s": found.compute_s,
            "straggler_s": found.straggler_s,
            "communication_s": found.communication_s,
            "exposed_communication_s": found.exposed_s,
            "cycles_s": found.cycles_s,
            "codec_s": found.codec_s,
        },
        "scaling_factor": found.scaling_factor,
        "expected_error": None if expected is None or found.outside else expected.error,
        "expected_error_source": None if expected is None or found.outside else expected.source,
        "outside": list(found.outside),
        "decides": found.decides,
        "critical_path": [piece._asdict() for piece in found.critical_path],
        "links": [link._asdict() for link in found.links],
        "models_s": found.models,
        "assumptions": list(plan.experiment.topology.assumptions()),
        "fitted_at": found.fitted_at,
    }


def render_prediction(found: IterationPrediction, plan: Plan, expected: Expected | None, console: Console) -> None:
    """The answer, its parts, the other models, the links that carry most, and how far it reaches."""
    console.print(f"[bold]predicted[/]: an iteration takes {time_text(found.iteration_time_s)}", highlight=False)
    if found.compute_s is None or found.scaling_factor is None:
        console.print(
            "  of communication alone: computing is real in this workload, and its time is not known before",
            highlight=False,
        )
    else:
        straggler = f", a straggler {time_text(found.straggler_s)} longer" if found.straggler_s else ""
        cycles = f", waiting for a cycle of fusion {time_text(found.cycles_s)} of it" if found.cycles_s else ""
        console.print(
            f"  computing {time_text(found.compute_s)}{straggler}; communicating {time_text(found.communication_s)}; "
            f"not hidden {time_text(found.exposed_s)}{cycles}; scaling factor {percent_text(found.scaling_factor)}",
            highlight=False,
        )
    console.print(f"  what decides: {_DECIDES[found.decides]}", highlight=False)
    path = " > ".join(f"{piece.what} {time_text(piece.end_s - piece.start_s)}" for piece in found.critical_path)
    console.print(f"  critical path: {path}", highlight=False, soft_wrap=True)
    if found.codec_s is None:
        console.print(f"  {_NO_CODEC}", highlight=False)
    models = Table("model", "iteration")
    for name, time_s in found.models.items():
        models.add_row(name, "does not apply" if time_s is None else time_text(time_s))
    console.print(models)
    links = Table("link", "carries", "of its rate")
    for link in found.links[:_NUM_LINKS]:
        links.add_row(link.name, size_text(round(link.num_bytes)), percent_text(link.utilization))
    console.print(links)
    render_notes(plan.experiment.topology.assumptions(), console)
    if plan.dilation_text:
        console.print(f"{plan.dilation_text}; times are virtual", highlight=False, style="dim", soft_wrap=True)
    console.print(costs_text(plan.costs), highlight=False, style="dim", soft_wrap=True)
    console.print(_reach(found.outside, expected), highlight=False, style="dim", soft_wrap=True)


def _reach(outside: Sequence[str], expected: Expected | None) -> str:
    if expected is None:
        return f"Predicted, not measured: {reach_text(outside, None, None, 0)}."
    return f"Predicted, not measured: {reach_text(outside, expected.error, expected.source, expected.num_points)}."


def exchanges_json(found: Sequence[ExchangePrediction], costs: Costs, expected: Expected | None) -> dict[str, Any]:
    """The predicted exchanges as plain data, for scripts."""
    known = None if _all_outside(found) else expected
    return {
        "kind": "predicted",
        "exchanges": [each._asdict() for each in found],
        "expected_error": None if known is None else known.error,
        "expected_error_source": None if known is None else known.source,
        "fitted_at": costs.fitted_at,
    }


def render_exchanges(
    found: Sequence[ExchangePrediction], costs: Costs, expected: Expected | None, console: Console
) -> None:
    """A row for each."""
    table = Table("stack", "size", "predicted", "outside what was compared")
    for each in found:
        text = "not predicted" if each.time_s is None else time_text(each.time_s)
        table.add_row(each.stack, size_text(each.size_bytes), text, "; ".join(each.outside))
    console.print(table)
    console.print(costs_text(costs), highlight=False, style="dim", soft_wrap=True)
    console.print(_reach(_all_outside(found), expected), highlight=False, style="dim", soft_wrap=True)


def _all_outside(found: Sequence[ExchangePrediction]) -> tuple[str, ...]:
    """In what, where none lies inside of what predictions were compared with."""
    if not all(each.outside for each in found):
        return ()
    return tuple(dict.fromkeys(each for exchange in found for each in exchange.outside))

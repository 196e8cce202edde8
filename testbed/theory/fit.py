"""What hosts add to links, fitted to exchanges that were measured: the parameters of the cost model. Pure.

Relative errors, so that a short exchange counts as much as a long one, by Levenberg and Marquardt (Marquardt, SIAM
11, 1963) on the logarithms of the parameters, which are above zero. Squares as long as errors are small, magnitudes
beyond (Huber, Annals of Mathematical Statistics 35, 1964), so that one measurement that a busy machine has spoilt
does not move what all others agree on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from math import exp, log
from typing import Any, Final, NamedTuple

import numpy as np

from testbed.plan.plan import Plan
from testbed.plan.prediction import exchanged_alone, plan_links
from testbed.theory.reach import Reach
from testbed.theory.simulation.fair_sharing import Floats
from transports.collectives.costs import DEFAULT_COSTS, ChannelCosts, Costs
from transports.collectives.timing import IDLE_S
from transports.compression.base import Exchange

_RANGES: Final = {
    "host_latency_s": (1e-7, 1.0),
    "message_s": (1e-7, 1.0),
    "copy_s_per_byte": (1e-12, 1e-6),
    "addition_s_per_byte": (1e-12, 1e-6),
    "late_s": (1e-7, 1.0),
    "shaper_late_s": (1e-7, 1.0),
    "link_share": (0.1, 1.05),
}
"""A link's share may be a little above 1: a burst goes beyond the shaper's rate."""
PARAMETERS: Final = tuple(_RANGES)
CHANNEL_PARAMETERS: Final = tuple(each.name for each in fields(ChannelCosts) if each.name in _RANGES)
TCP: Final = "tcp"
"""The channel by which links and hosts are measured."""
_STEP: Final = 0.05
_NUM_ROUNDS: Final = 25
_SMALL: Final = 0.01
"""Errors below are squared."""


class Measured(NamedTuple):
    """One exchange that was measured."""

    plan: Plan
    """Of the links, the collective and the channel, with a workload of this one exchange."""
    exchange: Exchange
    time_s: float
    """Of the slowest worker: the median of several."""
    begins_s: Sequence[float] = ()
    """When each worker began; empty: all at once."""

    def predicted_s(self, costs: Costs) -> float:
        """The time of the exchange by the cost model."""
        plan = self.plan
        experiment = plan.experiment
        costs = costs.of_channel(experiment.channel.kind)
        links = plan_links(plan.directions, plan.paths, plan.participants, experiment=experiment, costs=costs)
        found = exchanged_alone(
            plan.collective,
            plan.world,
            self.exchange,
            links,
            costs,
            latency_s=plan.prediction.latency_s,
            rate_bps=plan.prediction.aggregation_bps,
            quiet_s=IDLE_S,
            begins_s=self.begins_s,
        )
        return found.slowest_s(self.begins_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Parameters, and how well they fit."""

    costs: Costs
    residuals: tuple[float, ...]
    """Of each measurement: predicted over measured, less 1."""
    reach: Reach
    """The ranges that the measurements span."""

    @property
    def mean_error(self) -> float:
        """The mean magnitude of the residuals."""
        return float(np.mean(np.abs(self.residuals)))

    @property
    def largest_error(self) -> float:
        """The largest magnitude of the residuals."""
        return float(np.max(np.abs(self.residuals)))


def fit_costs(
    measured: Sequence[Measured],
    *,
    fitted_at: str,
    num_cores: int | None = None,
    predicted_s: Callable[[Measured, Costs], float] | None = None,
) -> Fit:
    """The parameters with which the cost model comes nearest to the measurements, all participants of which shared so
    many cores: of TCP's exchanges first, then, with what they say of links and hosts, of each other channel what it
    takes for a message and for a byte. Raises ValueError for fewer measurements than parameters, or times that are not
    above zero."""
    if any(not each.time_s > 0 for each in measured):
        raise ValueError("a measured time is not above zero")
    of = predicted_s or Measured.predicted_s
    by_channel: dict[str, list[Measured]] = {TCP: []}
    for each in measured:
        by_channel.setdefault(each.plan.experiment.channel.kind, []).append(each)
    costs = replace(DEFAULT_COSTS, num_cores=num_cores, fitted_at=fitted_at)
    costs = _fitted(by_channel.pop(TCP), PARAMETERS, costs, of, lambda values: replace(costs, **values))
    for kind, several in by_channel.items():
        others = costs

        def with_channel(values: Mapping[str, Any], kind: str = kind, others: Costs = others) -> Costs:
            return replace(others, channels=(*others.channels, ChannelCosts(channel=kind, **values)))

        costs = _fitted(several, CHANNEL_PARAMETERS, others, of, with_channel)
    reach = reduce(Reach.joined, (Reach.of(each.plan) for each in measured))
    return Fit(costs=costs, residuals=tuple(of(each, costs) / each.time_s - 1 for each in measured), reach=reach)


def _fitted(
    measured: Sequence[Measured],
    names: Sequence[str],
    start: Costs,
    predicted_s: Callable[[Measured, Costs], float],
    with_values: Callable[[Mapping[str, Any]], Costs],
) -> Costs:
    """With the values of those parameters that fit best, from where they start; `with_values` puts them in."""
    if len(measured) < len(names):
        raise ValueError(f"{len(measured)} measurements cannot decide {len(names)} parameters")

    def costs_at(logarithms: Floats) -> Costs:
        return with_values({name: exp(logarithm) for name, logarithm in zip(names, logarithms, strict=True)})

    def residuals(logarithms: Floats) -> Floats:
        costs = costs_at(logarithms)
        return np.array([predicted_s(each, costs) / each.time_s - 1 for each in measured])

    at = np.array([log(getattr(start, name)) for name in names])
    low, high = np.log(np.array([_RANGES[name] for name in names])).T
    now, damping = residuals(at), 1e-2
    for _ in range(_NUM_ROUNDS):
        slopes = np.stack([(residuals(at + _STEP * each) - now) / _STEP for each in np.eye(len(at))], axis=1)
        weighted = slopes * _weights(now)[:, None]
        normal = weighted.T @ slopes
        step = np.linalg.solve(
            normal + damping * (np.diag(np.diag(normal)) + 1e-9 * np.eye(len(at))), -weighted.T @ now
        )
        tried = np.clip(at + np.clip(step, -1.0, 1.0), low, high)
        then = residuals(tried)
        if _loss(then) < _loss(now):
            small = _loss(now) - _loss(then) < 1e-6 * _loss(now)
            at, now, damping = tried, then, damping / 3
            if small:
                break
        else:
            damping *= 4
    return costs_at(at)


def _weights(residuals: Floats) -> Floats:
    """Of iteratively reweighted least squares."""
    return _SMALL / np.maximum(np.abs(residuals), _SMALL)


def _loss(residuals: Floats) -> float:
    """Huber's."""
    magnitudes = np.abs(residuals)
    small = np.minimum(magnitudes, _SMALL)
    return float((small * (magnitudes - small / 2)).sum())

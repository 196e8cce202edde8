"""What hosts add to links, fitted to exchanges that were measured: the parameters of the cost model. Pure.

Relative errors, so that a short exchange counts as much as a long one, by Levenberg and Marquardt (Marquardt, SIAM
11, 1963) on the logarithms of the parameters, which are above zero. Squares as long as errors are small, magnitudes
beyond (Huber, Annals of Mathematical Statistics 35, 1964), so that one measurement that a busy machine has spoilt
does not move what all others agree on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import exp, log
from typing import Final, NamedTuple

import numpy as np

from testbed.plan.plan import Plan
from testbed.plan.prediction import exchange_time_s, plan_links
from testbed.theory.reach import Reach
from testbed.theory.simulation.fair_sharing import Floats
from transports.collectives.costs import DEFAULT_COSTS, Costs
from transports.collectives.timing import IDLE_S
from transports.compression.base import Exchange

_RANGES: Final = {
    "host_latency_s": (1e-7, 1.0),
    "message_s": (1e-7, 1.0),
    "copy_s_per_byte": (1e-12, 1e-6),
    "addition_s_per_byte": (1e-12, 1e-6),
    "late_s": (1e-7, 1.0),
    "link_share": (0.1, 1.05),
}
"""A link's share may be a little above 1: a burst goes beyond the shaper's rate."""
PARAMETERS: Final = tuple(_RANGES)
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

    def predicted_s(self, costs: Costs) -> float:
        """The time of the exchange by the cost model."""
        plan = self.plan
        experiment = plan.experiment
        fraction = experiment.channel.goodput_fraction(experiment.mtu)
        links = plan_links(plan.directions, plan.paths, plan.participants, experiment=experiment, costs=costs)
        return exchange_time_s(
            plan.collective,
            plan.world,
            self.exchange,
            links,
            costs,
            latency_s=plan.propagation_s,
            rate_bps=plan.prediction.goodput_bps / fraction,
            quiet_s=IDLE_S,
        )


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
    many cores. Raises ValueError for fewer
    measurements than parameters, or times that are not above zero."""
    if len(measured) < len(PARAMETERS):
        raise ValueError(f"{len(measured)} measurements cannot decide {len(PARAMETERS)} parameters")
    if any(not each.time_s > 0 for each in measured):
        raise ValueError("a measured time is not above zero")
    of = predicted_s or Measured.predicted_s

    def residuals(logarithms: Floats) -> Floats:
        costs = _costs(logarithms, num_cores)
        return np.array([of(each, costs) / each.time_s - 1 for each in measured])

    at = np.array([log(getattr(DEFAULT_COSTS, name)) for name in PARAMETERS])
    now, damping = residuals(at), 1e-2
    for _ in range(_NUM_ROUNDS):
        slopes = np.stack([(residuals(at + _STEP * each) - now) / _STEP for each in np.eye(len(at))], axis=1)
        weighted = slopes * _weights(now)[:, None]
        normal = weighted.T @ slopes
        step = np.linalg.solve(
            normal + damping * (np.diag(np.diag(normal)) + 1e-9 * np.eye(len(at))), -weighted.T @ now
        )
        tried = _bounded(at + np.clip(step, -1.0, 1.0))
        then = residuals(tried)
        if _loss(then) < _loss(now):
            small = _loss(now) - _loss(then) < 1e-6 * _loss(now)
            at, now, damping = tried, then, damping / 3
            if small:
                break
        else:
            damping *= 4
    costs = replace(_costs(at, num_cores), fitted_at=fitted_at)
    reach = reduce(Reach.joined, (Reach.of(each.plan) for each in measured))
    return Fit(costs=costs, residuals=tuple(map(float, now)), reach=reach)


def _weights(residuals: Floats) -> Floats:
    """Of iteratively reweighted least squares."""
    return _SMALL / np.maximum(np.abs(residuals), _SMALL)


def _loss(residuals: Floats) -> float:
    """Huber's."""
    magnitudes = np.abs(residuals)
    small = np.minimum(magnitudes, _SMALL)
    return float((small * (magnitudes - small / 2)).sum())


def _bounded(logarithms: Floats) -> Floats:
    low, high = np.log(np.array(list(_RANGES.values()))).T
    return np.clip(logarithms, low, high)


def _costs(logarithms: Floats, num_cores: int | None) -> Costs:
    value = {name: exp(logarithm) for name, logarithm in zip(PARAMETERS, logarithms, strict=True)}
    return replace(
        DEFAULT_COSTS,
        host_latency_s=value["host_latency_s"],
        message_s=value["message_s"],
        copy_s_per_byte=value["copy_s_per_byte"],
        addition_s_per_byte=value["addition_s_per_byte"],
        late_s=value["late_s"],
        link_share=value["link_share"],
        num_cores=num_cores,
    )

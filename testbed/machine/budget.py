"""What this machine carries, as `testbed doctor` measured it (testbed.machine.capacity), and what a plan requests.

Every byte between workers crosses two shaped links and a switch, on the same cores that train. The budget is the sum of
the goodputs of as many streams as such a star carries when only the cores limit it.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import numpy as np

from switch_agg.native.cache import cache_directory
from testbed.calibration.cache import machine_digest
from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.clock import MAX_DILATION
from testbed.experiment.link import MTU
from testbed.machine.codec_cost import CODEC_SHARE, CodecLoad
from testbed.plan.plan import Plan
from transports.units import format_rate

NUM_WORKERS: Final = 4
PROBED_DELAY: Final = "1ms"
COMFORTABLE_SHARE: Final = 0.5
"""Above, the links alone take half of the cores' time while they are full."""
DILATED_SHARE: Final = 0.35
"""Of what links alone can carry, what dilated ones are requested: workers copy, add and divide every byte on the same
cores. With two cores and ResNet-50 on eight workers an all-reduce took 1.33 times its bound at 0.5, 1.06 times at 0.34
and 0.26; on four, 1.22 times at 0.5 and 1.08 times at 0.33. Headers are 1.05 of that."""
WORKERS_SHARE: Final = 0.7
"""Of the cores, what workers with a quota may take all together: links, switches and the controller want the rest."""
_FILE: Final = "budget.json"
_TRIED: Final = (1.0, 4.0, 16.0, 64.0, 256.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lateness:
    """How much later than requested something happened."""

    mean_s: float
    p99_s: float

    @classmethod
    def of(cls, late_s: list[float]) -> "Lateness":
        """Mean and 99th percentile of at least one lateness."""
        return cls(mean_s=statistics.fmean(late_s), p99_s=float(np.percentile(late_s, 99)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """The sum of all streams, in bit/s of the shaper, headers included."""

    superframe_bps: float
    """With segmentation left to the links (`packet_mode: superframe`)."""
    mtu_bps: float
    """With single packets (`packet_mode: mtu`)."""

    def of_packets_bps(self, packet_bytes: int) -> float:
        """With packets of at most that size."""
        return self.mtu_bps if packet_bytes <= MTU else self.superframe_bps


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What this machine carries, as measured; rates are of the shaper, headers included."""

    measured_at: str
    """ISO 8601."""
    machine: str
    """What it was measured on: see machine_digest()."""
    undelayed: Carried
    """Through links that shape and do not delay."""
    delayed: Mapping[str, Carried]
    """Through links with a delay, by backend: some take every packet out of the kernel and put it back."""
    delays: Mapping[str, Lateness]
    """One way through a delay of 1 ms, by backend."""
    timer: Lateness
    """Of a sleep of 200 us, of a thread with real-time priority."""
    busy_share: float
    """Of the cores, by other programs, before it began."""

    def carries_bps(self, plan: Plan) -> float:
        """What this machine carries of such packets, through such delays as the plan's links have, in real bit/s."""
        packet_bytes = plan.experiment.packet_bytes
        carried_bps = self.undelayed.of_packets_bps(packet_bytes)
        delayed = self.delayed.get(plan.delay_backend or "")
        return carried_bps if delayed is None else min(carried_bps, delayed.of_packets_bps(packet_bytes))


class UnknownBudgetError(MissingRequirementError):
    """Nobody has measured what this machine carries."""


def keep(budget: Budget) -> None:
    """In the user's cache, for :func:`known_budget`. Raises MissingRequirementError."""
    path = cache_directory() / _FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(budget), indent=1) + "\n", encoding="utf-8")
    except OSError as failure:
        raise MissingRequirementError(f"cannot write {path}: {failure.strerror}; set XDG_CACHE_HOME") from failure


def known_budget() -> Budget | None:
    """What `testbed doctor` measured on this machine with this code; None if it has not, or the file is not whole."""
    try:
        found = json.loads((cache_directory() / _FILE).read_text(encoding="utf-8"))
        budget = Budget(
            **{
                **found,
                "timer": Lateness(**found["timer"]),
                "undelayed": Carried(**found["undelayed"]),
                "delayed": {name: Carried(**carried) for name, carried in found["delayed"].items()},
                "delays": {name: Lateness(**late) for name, late in found["delays"].items()},
            }
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return budget if budget.machine == machine_digest() else None


def requested_bps(plan: Plan) -> float:
    """The most that the links must carry at once, in virtual bit/s, as the budget counts: each byte once for two links.

    While the most loaded direction is full, every other carries its share. Without a collective's schedule every
    worker sends at its rate.
    """
    carried = [(each, each.balanced_bytes + (each.input_bytes or 0)) for each in plan.directions]
    fullest_s = max(8 * num_bytes / each.rate_bps for each, num_bytes in carried)
    if fullest_s > 0:
        return sum(8 * num_bytes / fullest_s for _, num_bytes in carried) / 2
    ends = {node.name for node in plan.nodes if node.role != "switch"}
    shaped = [direction for direction in plan.directions if not direction.requested.unshaped]
    return sum(direction.rate_bps for direction in shaped if direction.sender.node in ends)


def handed_over_bps(plan: Plan) -> float:
    """What workers hand over while they compute backward, all together, in virtual bit/s: hosts copy each byte of a
    gradient meanwhile, however slow the links are. 0 where no table says how long backward lasts, and where parameters
    are exchanged now and then, after a step."""
    experiment = plan.experiment
    table = experiment.workload.timed_layers()
    if table is None or table.backward_s <= 0 or experiment.workers < 2:
        return 0.0
    if experiment.synchronisation.in_step and not experiment.synchronisation.gradients_in_every_iteration:
        return 0.0
    return 8 * experiment.workers * table.size_bytes / table.backward_s


def refuse_excess(plan: Plan, budget: Budget | None) -> None:
    """Raise MissingRequirementError for a direction whose rate this machine cannot carry even alone."""
    if budget is None:
        return
    carries_bps = plan.clock.virtual_bps(budget.carries_bps(plan))
    fastest = max((each for each in plan.all_configured if not each.spec.unshaped), key=lambda each: each.spec.rate_bps)
    if fastest.spec.rate_bps > carries_bps:
        raise MissingRequirementError(
            f"{fastest.key('rate')}: {' -> '.join(fastest.hop)} asks for {format_rate(fastest.spec.rate_bps)}, and all "
            f"links of this machine together carry {carries_bps / 1e9:.1f} Gbit/s{_dilated(plan)} (measured "
            f"{budget.measured_at}): ask for less, or measure again on an idle machine with `testbed doctor`; or let "
            "time run slower, with a workload that can: `dilation: auto`"
        )


def comparison(plan: Plan, budget: Budget | None) -> str:
    """One sentence for `testbed plan`: what is requested at once, against what is known of the machine."""
    requested_gbps = requested_bps(plan) / 1e9
    if budget is None:
        return (
            f"up to {requested_gbps:.3g} Gbit/s at once; what this machine carries is not known: run `testbed doctor`"
        )
    carries_gbps = plan.clock.virtual_bps(budget.carries_bps(plan)) / 1e9
    share = requested_gbps / carries_gbps
    text = (
        f"up to {requested_gbps:.3g} Gbit/s at once, {100 * share:.0f} % of the {carries_gbps:.3g} Gbit/s that this "
        f"machine carries{_dilated(plan)} (measured {budget.measured_at})"
    )
    if share > 1:
        return f"{text}: expect `degraded` or `invalid`; use fewer workers, a lower rate, or `dilation: auto`"
    if share > COMFORTABLE_SHARE:
        return f"{text}: training needs the same cores, so the verdict may be `degraded`"
    return text


def _dilated(plan: Plan) -> str:
    return "" if plan.clock.dilation == 1 else f" at dilation {plan.clock.dilation:g}"


def least_dilation(requested: float, carries_bps: float) -> int:
    """The smallest whole number of times that time must run slower, so that what is `requested`, in bit/s, takes at
    most DILATED_SHARE of what the machine carries."""
    return max(1, math.ceil(requested / (DILATED_SHARE * carries_bps)))


class _Demand(NamedTuple):
    """What asks for slower time."""

    what: str
    dilation: int
    """The least that is enough for it."""
    limit: str
    """What it may take then."""


def _workers_demand(plan: Plan, num_cores: int) -> _Demand | None:
    """What `host_cost: real` asks for: all workers' quotas leave cores for links, switches and what watches them."""
    if plan.experiment.host_cost != "real":
        return None
    virtual_cores = plan.quota_cores * plan.clock.dilation
    return _Demand(
        f"host_cost: real, {plan.experiment.workers} workers with {virtual_cores:g} cores",
        math.ceil(virtual_cores / (WORKERS_SHARE * num_cores)),
        f"{100 * WORKERS_SHARE:g} % of {num_cores} cores",
    )


def chosen_dilation(
    budget: Budget | None,
    planned_at: Callable[[float], Plan],
    codecs: Callable[[Plan], CodecLoad | None],
    *,
    num_cores: int,
) -> tuple[float, str]:
    """What `dilation: auto` is on this machine, and why. `planned_at` plans the spec at a dilation, `codecs` measures
    what compressing takes here, None where nothing does. `num_cores`: that the run may use.

    Raises MissingRequirementError where nobody has measured what the machine carries, or it carries too little even at
    the greatest dilation; SpecError where the spec can be planned at none.
    """
    if budget is None:
        raise UnknownBudgetError(
            "dilation: auto goes by what this machine carries, which is not known: run `sudo testbed doctor` once, on "
            "an idle machine (it takes some seconds), or say the factor: --set dilation=50"
        )
    _, plan = _planned(planned_at, _TRIED)
    while True:
        found, reason = _sufficient(budget, plan, planned_at, codecs, num_cores)
        settled = planned_at(found)  # perhaps with another delay backend, which can make longer delays
        if budget.carries_bps(settled) >= budget.carries_bps(plan):
            return found, reason
        plan = settled


def _sufficient(
    budget: Budget,
    plan: Plan,
    planned_at: Callable[[float], Plan],
    codecs: Callable[[Plan], CodecLoad | None],
    num_cores: int,
) -> tuple[float, str]:
    """The least factor, and why, where links delay as in that plan."""
    carries_bps = budget.carries_bps(plan)
    requested = requested_bps(plan)
    fastest_bps = max(each.spec.rate_bps for each in plan.all_configured if not each.spec.unshaped)
    known = f"this machine carries {carries_bps / 1e9:.3g} Gbit/s (measured {budget.measured_at})"
    of_known = f"{100 * DILATED_SHARE:.0f} % of it where {known}"
    most_bps, what = max(
        (requested, f"up to {requested / 1e9:.4g} Gbit/s at once"),
        (fastest_bps, f"a link of {format_rate(fastest_bps)}"),
        ((handed := handed_over_bps(plan)), f"workers hand over {handed / 1e9:.4g} Gbit/s of gradients"),
    )
    demand = _Demand(what, least_dilation(most_bps, carries_bps), of_known)
    load = codecs(plan)
    if load is not None and load.least_dilation > demand.dilation:
        demand = _Demand(str(load), load.least_dilation, f"{100 * CODEC_SHARE:g} % of them")
    workers = _workers_demand(plan, num_cores)
    if workers is not None and workers.dilation > demand.dilation:
        demand = workers
    if demand.dilation > MAX_DILATION:
        raise MissingRequirementError(
            f"dilation: {demand.what} would need time to run {demand.dilation} times slower, and more than "
            f"{MAX_DILATION:g} times it cannot; {known}"
        )
    possible = _least_possible(demand.dilation, planned_at)
    if possible > demand.dilation:
        return float(possible), (
            f"time runs {possible} times slower: what makes delays here cannot honour those of the spec in less "
            f"({demand.dilation} would do for {demand.what})"
        )
    if possible == 1:
        also = "" if load is None else f", {load}"
        return 1.0, f"time is not dilated: {demand.what}{also}, and {known}"
    return float(possible), f"time runs {possible} times slower: {demand.what}, which may take {demand.limit}"


def _least_possible(dilation: int, planned_at: Callable[[float], Plan]) -> int:
    """The smallest whole number, from there on, at which the spec can be planned: a delay that is too short for its
    backend is longer in slower time."""
    tried = [dilation, *(int(each) for each in _TRIED if each > dilation)]
    possible, _ = _planned(planned_at, tried)
    too_small = max((each for each in tried if each < possible), default=possible)
    while possible - too_small > 1:
        between = (int(possible) + int(too_small)) // 2
        try:
            planned_at(between)
        except SpecError:
            too_small = between
        else:
            possible = between
    return int(possible)


def _planned(planned_at: Callable[[float], Plan], dilations: Sequence[float]) -> tuple[float, Plan]:
    """The first of these, in ascending order, at which it can be planned, and the plan: what links must carry depends
    on none, and whether their backends can do it does."""
    failure: SpecError | None = None
    for dilation in dilations:
        try:
            return dilation, planned_at(dilation)
        except SpecError as error:
            failure = failure or error
    assert failure is not None
    raise failure

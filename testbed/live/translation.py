"""Tells a run by the rows of its record: whoever hands over the rows as they are written, or as they are read years
later, gets the same messages. Pure.

The messages of a table depend on that table's rows alone, in their order. Rows come in wall seconds since the run's
epoch (testbed.record.frames), messages in virtual ones.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.link import UNSHAPED_BPS
from testbed.links.htb import wire_bytes
from testbed.live.layout import drawing
from testbed.live.messages import (
    Change,
    Direction,
    Interference,
    Iteration,
    Links,
    Machine,
    Message,
    Node,
    Opening,
    Phase,
    Shaping,
)
from testbed.metrics.families import ITERATION_PART_NAMES
from testbed.record.frames import EXCHANGING
from testbed.verdict.machine import beyond_chance, probing_chance
from testbed.verdict.parts import PartsMeanwhile
from testbed.verdict.thresholds import BACKLOG_SHORT_DEGRADED, RATE_TOLERANCE, STEAL_DEGRADED

Row = Mapping[str, Any]
LINKS_INTERVAL_S: Final = 0.08
"""At least so long between two messages of links: ten a second, where samples come every tenth."""
SLOW_INTERVAL_S: Final = 0.5
"""The same for what people read as numbers."""
TRACE_INTERVAL_S: Final = 1.0
"""The same for steps of a trace on one direction."""


def opening(
    plan: Mapping[str, Any], experiment: Experiment | None, *, run_id: str, setup: str, point: str = ""
) -> Opening:
    """How a run begins, by its plan as the record has it; `experiment` where this version can read its spec.

    Raises SpecError where the plan does not say what there is.
    """
    try:
        nodes = [(node["name"], node["role"]) for node in plan["nodes"]]
        hops = [(each["link"], each["sender"]["node"], each["receiver"]["node"]) for each in plan["directions"]]
        spec = plan["spec"]
        drawn = drawing(nodes, [hop[1:] for hop in hops], topology=spec.get("topology"), num_workers=spec["workers"])
        return Opening(
            run_id=run_id,
            name=spec["name"],
            setup=setup,
            point=point,
            num_workers=spec["workers"],
            dilation=plan["dilation"],
            width=drawn.width,
            height=drawn.height,
            nodes=[
                Node(name=name, role=role, x=drawn.places[name][0], y=drawn.places[name][1]) for name, role in nodes
            ],
            directions=[
                Direction(link=link, sender=sender, receiver=receiver, bend=drawn.bends[sender, receiver])
                for link, sender, receiver in hops
            ],
            phases=dict(experiment.workload.phase_lengths()) if experiment is not None else {},
        )
    except (KeyError, TypeError) as error:
        raise SpecError(f"plan.json has no network to draw ({type(error).__name__}: {error})") from None


@dataclass(slots=True)
class _Probed:
    """What probes of one direction have seen."""

    sent_bytes: int = 0
    due_bytes: float = 0.0
    num_probes: int = 0


class Translator:
    """Hears rows, table by table, and what else a run says of itself; answers with messages."""

    def __init__(self, opening: Opening, *, ends_together: bool = True, granule_bytes: int = 0) -> None:
        """`ends_together`: workers wait for each other at the end of every iteration. `granule_bytes`: the most that a
        link sends at once, by which counts of probes err."""
        self._num_workers = opening.num_workers
        self._dilation = opening.dilation
        self._ends_together = ends_together
        self._granule_bytes = granule_bytes
        self._index = {(each.link, each.sender): number for number, each in enumerate(opening.directions)}
        self._receivers = {(each.link, each.sender): each.receiver for each in opening.directions}
        self._phase = ""
        self._links: dict[tuple[str, str], Row] = {}
        """The row of each direction that the last message of links was about."""
        self._sampled_s = -math.inf
        self._waiting: dict[int, dict[int, Row]] = {}
        """Iterations that some worker is not through, by index and rank."""
        self._iterating = ""
        self._parts = PartsMeanwhile(ends_together=ends_together)
        """Of that phase."""
        self._stepped_s: dict[tuple[str, str, str], float] = {}
        self._probed: dict[tuple[str, str], _Probed] = {}
        self._probes_said_s = -math.inf
        self._machine_first: Row | None = None
        self._machine_said: Row | None = None
        self._interference: list[str] = []
        self._tables: Mapping[str, Callable[[Sequence[Row]], list[Message]]] = {
            "links": self._on_links,
            "iterations": self._on_iterations,
            "changes": self._on_changes,
            "backlog": self._on_probes,
            "machine": self._on_machine,
        }

    def rows(self, table: str, rows: Sequence[Row]) -> list[Message]:
        """Rows that a table has got; of `links` one sample of every direction."""
        tell = self._tables.get(table)
        return tell(rows) if tell is not None and rows else []

    def phase(self, name: str, at_s: float) -> list[Message]:
        """A phase begins, in wall seconds; one that goes on is not said again."""
        if name == self._phase:
            return []
        self._phase = name
        return [Phase(at_s=self._virtual_s(at_s), name=name)]

    def interference(self, texts: Sequence[str], at_s: float) -> list[Message]:
        """What others have done to the run's processes so far, all of it."""
        if list(texts) == self._interference:
            return []
        self._interference = list(texts)
        return [Interference(at_s=self._virtual_s(at_s), against=list(dict.fromkeys(texts)))]

    def _virtual_s(self, real_s: float) -> float:
        return round(real_s / self._dilation, 6)

    def _on_links(self, rows: Sequence[Row]) -> list[Message]:
        at_s = max(row["at_s"] for row in rows)
        if at_s - self._sampled_s < LINKS_INTERVAL_S:
            return []
        self._sampled_s = at_s
        count = len(self._index)
        rates: list[int | None] = [None] * count
        used: list[int | None] = [None] * count
        waiting, dropped = [0] * count, [0] * count
        for row in rows:
            key = row["link"], row["node"]
            index = self._index[key]
            if row["rate_bps"] != UNSHAPED_BPS:
                rates[index] = round(row["rate_bps"])
                used[index] = self._used_permille(self._links.get(key), row)
            waiting[index], dropped[index] = row["backlog_bytes"], row["drops"]
            self._links[key] = row
        return [
            Links(
                at_s=self._virtual_s(at_s),
                rate_bps=rates,
                used_permille=used,
                waiting_bytes=waiting,
                dropped=dropped,
            )
        ]

    def _used_permille(self, before: Row | None, row: Row) -> int | None:
        if before is None or row["at_s"] <= before["at_s"]:
            return None
        carried_bps = 8 * (row["class_bytes"] - before["class_bytes"]) / (row["at_s"] - before["at_s"])
        permille: float = 1000 * self._dilation * carried_bps / row["rate_bps"]
        return round(permille)

    def _on_iterations(self, rows: Sequence[Row]) -> list[Message]:
        messages: list[Message] = []
        for row in rows:
            if row["phase"] != self._iterating:
                self._iterating = row["phase"]
                self._waiting.clear()
                self._parts = PartsMeanwhile(ends_together=self._ends_together and row["phase"] in EXCHANGING)
                messages += self.phase(row["phase"].replace("_", "-"), row["start_s"])
            workers = self._waiting.setdefault(row["index"], {})
            workers[row["rank"]] = row
            if len(workers) == self._num_workers:
                messages.append(self._iteration(list(self._waiting.pop(row["index"]).values())))
        return messages

    def _iteration(self, workers: Sequence[Row]) -> Iteration:
        of_workers = self._parts.of(workers).values()
        parts_s = {name: fmean(each[name] for each in of_workers) / self._dilation for name in ITERATION_PART_NAMES}
        loss = fmean(row["loss"] for row in workers)
        return Iteration(
            at_s=self._virtual_s(max(row["end_s"] for row in workers)),
            phase=workers[0]["phase"],
            number=workers[0]["index"] + 1,
            time_s=sum(parts_s.values()),
            parts_s=parts_s,
            loss=loss if math.isfinite(loss) else None,
        )

    def _on_changes(self, rows: Sequence[Row]) -> list[Message]:
        return [
            Change(
                at_s=self._virtual_s(row["at_s"]),
                link=row["link"],
                sender=row["node"],
                receiver=row["to"],
                setting=row["setting"],
                before=row["before"],
                after=row["after"],
                source=row["source"],
            )
            for row in rows
            if self._is_said(row)
        ]

    def _is_said(self, row: Row) -> bool:
        if row["source"] != "trace":
            return True
        key = row["link"], row["node"], row["setting"]
        if row["at_s"] - self._stepped_s.get(key, -math.inf) < TRACE_INTERVAL_S:
            return False
        self._stepped_s[key] = row["at_s"]
        return True

    def _on_probes(self, rows: Sequence[Row]) -> list[Message]:
        for row in rows:
            probed = self._probed.setdefault((row["link"], row["node"]), _Probed())
            probed.sent_bytes += row["sent_bytes"]
            probed.due_bytes += row["due_bytes"]
            probed.num_probes += 1
        at_s = rows[-1]["at_s"]
        due_bytes = sum(each.due_bytes for each in self._probed.values())
        if at_s - self._probes_said_s < SLOW_INTERVAL_S or due_bytes <= 0:
            return []
        self._probes_said_s = at_s
        return [
            Shaping(
                at_s=self._virtual_s(at_s),
                sent_share=sum(each.sent_bytes for each in self._probed.values()) / due_bytes,
                num_probes=sum(each.num_probes for each in self._probed.values()),
                against=list(self._unheld()),
            )
        ]

    def _unheld(self) -> Iterable[str]:
        for (link, node), each in self._probed.items():
            chance = probing_chance(each.num_probes, each.due_bytes, granule_bytes=self._granule_bytes)
            error = beyond_chance(each.sent_bytes, each.due_bytes, chance)
            if error > RATE_TOLERANCE or error < -BACKLOG_SHORT_DEGRADED:
                sent = f"{100 * each.sent_bytes / each.due_bytes:.1f} % of rate x time while packets waited"
                yield f"{node} → {self._receivers[link, node]} has sent {sent}"

    def _on_machine(self, rows: Sequence[Row]) -> list[Message]:
        messages: list[Message] = []
        for row in rows:
            first, before = self._machine_first or row, self._machine_said or row
            self._machine_first = first
            if self._machine_said is not None and row["at_s"] - before["at_s"] < SLOW_INTERVAL_S:
                continue
            self._machine_said = row
            if (ticks := row["ticks"] - before["ticks"]) > 0:
                idle_share = (row["idle_ticks"] - before["idle_ticks"]) / ticks
                against = list(self._held_back(first, row))
                messages.append(Machine(at_s=self._virtual_s(row["at_s"]), idle_share=idle_share, against=against))
        return messages

    def _held_back(self, first: Row, last: Row) -> Iterable[str]:
        ticks = last["ticks"] - first["ticks"]
        steal_share = (last["steal_ticks"] - first["steal_ticks"]) / ticks
        if ticks > os.sysconf("SC_CLK_TCK") and steal_share > STEAL_DEGRADED:
            yield f"the hypervisor took {100 * steal_share:.1f} % of the CPU time"
        if drops := last["softnet_drops"] - first["softnet_drops"]:
            yield f"the kernel's input queue was full and dropped {drops:,} packets"


def translator_of(opening: Opening, experiment: Experiment | None) -> Translator:
    """Of a run that begins so."""
    if experiment is None:
        return Translator(opening)
    return Translator(
        opening,
        ends_together=experiment.ends_together,
        granule_bytes=wire_bytes(experiment.packet_bytes, experiment.mtu),
    )

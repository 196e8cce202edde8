"""One member's sums by a switch, and what happens when it is lost.

A member is at most one reduction ahead of any other, since a sum takes everybody's contribution. So when the aggregator
is lost, those who have a sum that others miss still hold it: the members tell each other how many they have, and
whoever is ahead hands the last one on. All have the same bits; from then on everything goes by the collective's
schedule. Only with partial sums can a member be further ahead; then the loss ends the run.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import torch
from pydantic import ValidationError

from switch_agg import clock
from switch_agg.client import SOURCE_PORT, Client
from switch_agg.errors import AggregationError, explained
from switch_agg.errors import UnsupportedError as NoCompilerError
from switch_agg.quantize import Floats
from switch_agg.wire import PORTS
from transports.collectives.in_network import LOST_VARIABLE
from transports.errors import OptionError, TransportError
from transports.group import Group, published

if TYPE_CHECKING:
    from transports.collectives.in_network import InNetwork

SUMMED: Final = (torch.float32, torch.float16, torch.bfloat16)
NUM_SOURCE_PORTS: Final = 1024
SILENT_SHARE: Final = 1 / 3
"""Of the group's timeout, after which an aggregator that says nothing is lost: the rest is for going on without it."""
NUM_REMEMBERED: Final = 4
"""Sizes of reductions by which one is recognised in the next iteration."""


class SwitchReducer:
    """Driven by the group's communication thread, apart from :meth:`cancel` and :meth:`statistics`."""

    def __init__(self, options: "InNetwork", group: Group) -> None:
        """Join the job of the group. Raises TransportError when the aggregator does not answer."""
        if options.aggregator is None:
            raise OptionError(
                "in_network: there is no aggregator; `testbed run` makes one, anywhere else name its address: "
                '{"kind": "in_network", "aggregator": "10.0.0.9"}'
            )
        self._title = f"the aggregator {options.aggregator} ({options.dataplane})"
        self._num_done = 0
        self._last: Floats = np.empty(0, np.float32)
        self._open = False
        """Whether a reduction has been done that others may not have."""
        self._sizes: deque[int] = deque(maxlen=NUM_REMEMBERED)
        self._frame_bytes = options.frame_bytes
        self.lost: str | None = None
        """Why in-network aggregation has ended."""
        self._cancelled = False
        deadline_s = time.monotonic() + group.timeout_s
        group.store.set(f"in_network/{group.rank}", group.address)
        workers = tuple(
            published(group, f"in_network/{rank}", rank, f"the address of rank {rank}", deadline_s)
            for rank in range(group.size)
        )
        try:
            self._client = Client(
                options.job(workers),
                group.rank if options.aggregator_index is None else options.aggregator_index,
                (options.aggregator, PORTS.start),
                # The same in every repetition of a run, for the hash that chooses among equal paths.
                local=(group.address, SOURCE_PORT + crc32(group.name.encode()) % NUM_SOURCE_PORTS),
                policy=options.window,
                min_timeout_s=options.min_timeout_s,
                max_silence_s=clock.protocol_s(group.timeout_s) * SILENT_SHARE,
            )
            with ExitStack() as opened:
                opened.callback(self._client.close)
                self._client.join(clock.protocol_s(group.timeout_s))
                opened.pop_all()
        except ValidationError as error:
            raise OptionError(
                f"in_network: the ranks of this group are no job of a switch: {explained(error)}"
            ) from error
        except (AggregationError, NoCompilerError, OSError) as error:
            raise TransportError(f"{self._title} cannot be joined: {error}") from error

    def adds(self, dtype: torch.dtype, op: str) -> bool:
        """Whether the switch does such a reduction."""
        return self.lost is None and dtype in SUMMED and op in {"sum", "avg"}

    def all_reduce(self, values: torch.Tensor) -> bool:
        """Sum (n,) over all members, in place; False when the aggregator is lost and nothing has been done.

        After False, :meth:`settle` comes before anything else.
        """
        self._sizes.append(len(values))
        name = "-".join(map(str, self._sizes))
        try:
            total = self._client.all_reduce(name, values.float().numpy())
        except (AggregationError, OSError) as error:
            self._lose(f"{self._title} is lost: {error}")
            self._open = True
            return False
        self._num_done += 1
        self._last, self._open = total, True
        values.copy_(torch.from_numpy(total))
        return True

    def settle(
        self,
        tell: Callable[[int], Sequence[int]],
        broadcast: Callable[[torch.Tensor, int], None],
        values: torch.Tensor | None = None,
    ) -> bool:
        """Before members do anything else together: whoever misses the last sum gets it, into `values`.

        `tell` gives everybody's number for one's own. True when `values` has been filled.
        """
        if not self._open:
            return False
        self._open = False
        counts = tell(self._num_done)
        most = max(counts)
        if min(counts) == most:
            return False
        if most - min(counts) > 1:
            raise TransportError(
                f"{self._title} is lost, and partial sums had let others get {most - min(counts)} reductions ahead of "
                "the slowest: those are gone, and the ring cannot do them again; without `partial_after` it could"
            )
        if self.lost is None:
            self._lose(f"{self._title} is lost to another rank")
        behind = self._num_done < most
        assert values is not None or not behind, "only a reduction that has failed leaves a member behind"
        total = torch.from_numpy(self._last) if values is None or not behind else torch.empty(len(values))
        broadcast(total, counts.index(most))
        if behind and values is not None:
            self._num_done = most
            values.copy_(total)
        return behind

    def _lose(self, reason: str) -> None:
        """And say so, if it is not that the group was closed meanwhile."""
        self.lost = reason
        if not self._cancelled:
            _append_line(os.environ.get(LOST_VARIABLE), reason)

    def statistics(self) -> dict[str, Any]:
        """What this member has sent and received, and why in-network aggregation has ended, if it has."""
        return {
            **asdict(self._client.counters),
            "repeated": self._client.num_repeated,
            "partial": self._client.num_partial,
            "slot_latencies": self._client.slot_latencies,
            "frame_bytes": self._frame_bytes,
            "lost": self.lost,
        }

    def cancel(self) -> None:
        """From another thread: what is under way fails soon."""
        self._cancelled = True
        self._client.cancel()

    def close(self) -> None:
        """Leave the job, if the network is there, and close the socket."""
        try:
            if self.lost is None:
                with suppress(OSError):  # the aggregator learns of it when the next epoch begins
                    self._client.leave()
        finally:
            self._client.close()


def _append_line(path: str | None, text: str) -> None:
    """Whole, whoever else writes, to a file that is there: what started this process may be gone, and its file with
    it."""
    if path is None:
        return
    with suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, f"{' '.join(text.split())}\n".encode())
        finally:
            os.close(file)

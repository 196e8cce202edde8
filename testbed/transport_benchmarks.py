"""What the ways for gradients to travel are held to, each beside its rivals on the same links in the same run."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from testbed.bench import allreduce_rows
from testbed.targets import Benchmarks, Row, quietly, target_row


def _all_reduced(
    stacks: Sequence[str], link: Mapping[str, str], *, workers: int, size: str, repeat: int, **keys: Any
) -> tuple[dict[str, Row], dict[str, float]]:
    """The row of each stack for that size, and what the cores did meanwhile."""
    rows, facts = quietly(
        partial(
            allreduce_rows,
            num_workers=workers,
            link=dict(link),
            sizes=[size],
            stacks=stacks,
            repeat=repeat,
            congestion="cubic",
            **keys,
        )
    )
    return {row["stack"]: row for row in rows}, facts


def udp_rows() -> Iterator[Row]:
    """25 MB around a ring of four at 1 Gbit/s, with the rate given and discovered; CPU beside TCP's."""
    stacks = {"rate given": "ring/udp:rate=1gbit", "rate discovered": "ring/udp"}
    rows, facts = _all_reduced(["ring/tcp", *stacks.values()], {"rate": "1gbit"}, workers=4, size="25MB", repeat=7)
    for what, stack in stacks.items():
        told: Row = {**facts, **rows[stack]}
        yield target_row(f"udp, {what}: share of the bound", 1 / told["ratio_to_bound"], 0.97, told, at_least=True)
    for what, stack in stacks.items():
        ratio = rows[stack]["cpu_s_per_gb"] / rows["ring/tcp"]["cpu_s_per_gb"]
        yield target_row(f"udp, {what}: CPU over ring/tcp's", ratio, None, {**facts, **rows[stack]})


def udp_loss_rows() -> Iterator[Row]:
    """25 MB between two at 200 Mbit/s, 20 ms there and back, one packet of 200 lost on each way."""
    stacks = {"rate given": "ring/udp:rate=200mbit", "rate discovered": "ring/udp"}
    rows, facts = _all_reduced(
        ["ring/tcp", *stacks.values()],
        {"rate": "200mbit", "delay": "5ms", "loss": "0.25%"},  # a way crosses two links
        workers=2,
        size="25MB",
        repeat=3,
        packet_mode="mtu",
    )
    tcp = rows["ring/tcp"]
    for what, stack in stacks.items():
        told: Row = {**facts, **rows[stack]}
        share = 1 / told["ratio_to_bound"]
        yield target_row(f"udp with 0.5 % loss, {what}: share of the bound", share, 0.92, told, at_least=True)
        faster = tcp["time_s"]["median"] / told["time_s"]["median"]
        yield target_row(f"udp with 0.5 % loss, {what}: times cubic's speed", faster, 2.0, told, at_least=True)


BENCHMARKS: Final[Benchmarks] = {
    "udp": udp_rows,
    "udp-loss": udp_loss_rows,
}

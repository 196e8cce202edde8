"""Are Prometheus' counters the record's?

What the page says at a scrape is the last sample of each link, and every sample is in the record. So a value scraped at
t lies between what the record has for one scrape before t and one scrape after it; and the last scrape, taken when
nothing is sampled any more, has the record's last values exactly.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from testbed.errors import RunFailedError
from testbed.metrics import families
from testbed.metrics.families import Family
from testbed.metrics.server import DIRECTORY, SCRAPE_INTERVAL_S, PrometheusServer
from testbed.record.summary import PrometheusSummary

COUNTERS: Final[Mapping[Family, str]] = {
    families.LINK_TRANSMIT_BYTES: "class_bytes",
    families.LINK_TRANSMIT_PACKETS: "class_packets",
    families.LINK_DROPS: "drops",
}
"""Those of links, and the columns of links.parquet that they are."""
MAX_COMPARED_S: Final = 600.0
"""Of a long run the last ten minutes: each scrape of each direction is fetched."""


def differences(
    name: str,
    column: str,
    scraped: Mapping[tuple[str, str], Sequence[tuple[float, float]]],
    samples: pl.DataFrame,
    *,
    origin_s: float,
    slack_s: float,
) -> list[str]:
    """One line for each direction whose counter differs. Pure.

    `origin_s` is the Unix time at which `samples.at_s` is 0.
    """
    found = []
    for (link, node), rows in samples.sort("at_s").group_by(["link", "node"], maintain_order=True):
        scrapes = scraped.get((str(link), str(node)), ())
        where = f"{name} of {node} on {link}"
        if not scrapes:
            found.append(f"{where} was never scraped")
            continue
        at_s, values = np.array(scrapes, dtype=np.float64).T
        sampled_s, counted = rows["at_s"].to_numpy() + origin_s, rows[column].to_numpy()
        last = len(counted) - 1
        # Before the first sample nothing was on the page.
        low = counted[np.maximum(np.searchsorted(sampled_s, at_s - slack_s, side="right") - 1, 0)]
        high = counted[np.minimum(np.searchsorted(sampled_s, at_s + slack_s), last)]
        wrong = np.flatnonzero((values < low) | (values > high))
        if len(wrong):
            first = wrong[0]
            found.append(
                f"{where} was scraped as {values[first]:,.0f} when the record has {low[first]:,} to {high[first]:,}"
            )
        elif values[-1] != counted[last]:
            found.append(f"{where} ended as {values[-1]:,.0f}, the record as {counted[last]:,}")
    return found


def compare(server: PrometheusServer, samples: pl.DataFrame, *, epoch_s: float) -> PrometheusSummary:
    """What a run's Prometheus saw, beside the record's samples; when nothing is sampled any more.

    `epoch_s` is the moment on CLOCK_MONOTONIC that `samples.at_s` counts from. One that does not answer or does not
    scrape is a difference: what was measured is in the record all the same.
    """
    over_s = min(MAX_COMPARED_S, time.monotonic() - epoch_s)
    found: list[str] = []
    num_scrapes = num_series = 0
    alerts: dict[str, int] = {}
    try:
        server.await_scrape()
        origin_s = epoch_s + time.time() - time.monotonic()
        for family, column in COUNTERS.items():
            scraped = server.scrapes(family.name, over_s=over_s)
            found += differences(family.name, column, scraped, samples, origin_s=origin_s, slack_s=SCRAPE_INTERVAL_S)
        num_scrapes, num_series, alerts = server.num_scrapes(), server.num_series(), server.alerts()
    except RunFailedError as error:
        found.append(str(error))
    return PrometheusSummary(
        data=f"{DIRECTORY}/data",
        num_scrapes=num_scrapes,
        num_series=num_series,
        compared_s=over_s,
        alerts=alerts,
        differences=found,
    )

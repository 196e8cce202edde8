"""Are Prometheus' counters the record's?

What the page says at a scrape is the last reading of every link, with the moment at which it was taken; and every
reading is in the record. So each scraped value is one of the record's, exactly: that of its moment, however late the
page or Prometheus was. The last scrape, taken when nothing is read any more, has the record's last values.
"""

import time
from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from testbed.errors import RunFailedError
from testbed.metrics import families
from testbed.metrics.families import Family
from testbed.metrics.server import DIRECTORY, PrometheusServer, Series
from testbed.record.summary import PrometheusSummary

COUNTERS: Final[Mapping[Family, str]] = {
    families.LINK_TRANSMIT_BYTES: "class_bytes",
    families.LINK_TRANSMIT_PACKETS: "class_packets",
    families.LINK_DROPS: "drops",
}
"""Those of links, and the columns of links.parquet that they are."""
MAX_COMPARED_S: Final = 600.0
"""Of a long run the last ten minutes: each scrape of each direction is fetched."""
_CLOCK_ERROR_S: Final = 1e-5
"""Of Unix times as floating-point numbers, with room: two readings of a link are farther apart."""


def differences(
    name: str,
    column: str,
    scraped: Series,
    read_s: Mapping[float, float],
    samples: pl.DataFrame,
    *,
    origin_s: float,
) -> list[str]:
    """One line for each direction whose counter differs. Pure.

    `read_s` has, by the moment of the scrape, when the counters scraped then had been read; `origin_s` is the time, on
    the clock of these, at which `samples.at_s` is 0.
    """
    found = []
    for (link, node), rows in samples.sort("at_s").group_by(["link", "node"], maintain_order=True):
        scrapes = scraped.get((str(link), str(node)), ())
        where = f"{name} of {node} on {link}"
        if not scrapes:
            found.append(f"{where} was never scraped")
            continue
        if any(scrape_s not in read_s for scrape_s, _ in scrapes):
            found.append(f"{where} was scraped without the moment at which it was read")
            continue
        taken_s, values = np.array([(read_s[scrape_s], value) for scrape_s, value in scrapes]).T
        sampled_s, counted = rows["at_s"].to_numpy() + origin_s, rows[column].to_numpy()
        index = np.searchsorted(sampled_s, taken_s + _CLOCK_ERROR_S, side="right") - 1
        recorded = np.where(index >= 0, counted[index], -1)  # before the first reading nothing was on the page
        wrong = np.flatnonzero(values != recorded)
        if len(wrong):
            first = wrong[0]
            had = f"{recorded[first]:,}" if index[first] >= 0 else "nothing yet"
            found.append(f"{where} was scraped as {values[first]:,.0f} when the record has {had}")
        elif values[-1] != counted[-1]:
            found.append(f"{where} ended as {values[-1]:,.0f}, the record as {counted[-1]:,}")
    return found


def compare(
    server: PrometheusServer, samples: pl.DataFrame, *, epoch_s: float, clock_offset_s: float
) -> PrometheusSummary:
    """What a run's Prometheus saw, beside the record's samples; when nothing is sampled any more.

    `epoch_s` is the moment on CLOCK_MONOTONIC that `samples.at_s` counts from; the page's clock is `clock_offset_s`
    ahead of that one. A server that does not answer or does not scrape is a difference: what was measured is in the
    record all the same.
    """
    over_s = min(MAX_COMPARED_S, time.monotonic() - epoch_s)
    found: list[str] = []
    num_scrapes = num_series = 0
    alerts: dict[str, int] = {}
    try:
        server.await_scrape()
        scraped = server.scrapes([families.LINKS_READ.name, *(family.name for family in COUNTERS)], over_s=over_s)
        read_s = {at_s: value for each in scraped[families.LINKS_READ.name].values() for at_s, value in each}
        origin_s = epoch_s + clock_offset_s
        for family, column in COUNTERS.items():
            found += differences(family.name, column, scraped[family.name], read_s, samples, origin_s=origin_s)
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

"""What the C programs here write for others to read: their `struct counters`, as numpy sees them."""

from typing import Final

import numpy as np

from switch_agg.native.layout import Layout, layout_of

NUM_BUCKETS: Final = 896
"""Of the histogram of lateness that delay programs keep."""
DELAY_PARAMETERS: Final = (
    "max_packets", "delay_ns", "jitter_ns", "uniform", "loss_good", "loss_bad", "good_to_bad", "bad_to_good",
    "reorder", "seed",
)  # fmt: skip
RELAY_PARAMETERS: Final = (
    "rate_bps", "queue_bytes", "mark_bytes", "delay_ns", "jitter_ns", "uniform", "loss_good", "loss_bad",
    "good_to_bad", "bad_to_good", "duplicate", "reorder", "seed",
)  # fmt: skip
FLOW_COUNTERS: Final = (
    "origin_ns", "due", "sent", "blocked", "late", "sent_bytes", "received", "received_bytes",
)  # fmt: skip
DELAY_COUNTERS: Final = np.dtype(
    [
        *((name, "=u8") for name in ("queue", "packets", "lost", "reordered", "overdue_ns")),
        ("late", "=u8", (NUM_BUCKETS,)),
        ("parameters", [(name, "=f8") for name in DELAY_PARAMETERS]),
    ]
)
RELAY_COUNTERS: Final = np.dtype(
    [
        *(
            (name, "=u8")
            for name in (
                "packets", "bytes", "dropped_packets", "dropped_bytes", "marked", "lost", "duplicated", "reordered",
                "failed", "backlog_bytes", "overdue_ns",
            )
        ),
        ("late", "=u8", (NUM_BUCKETS,)),
        ("parameters", [(name, "=f8") for name in RELAY_PARAMETERS]),
    ]
)  # fmt: skip
_LOSSES: Final = {
    "parameters.loss_good": "parameters.losses.good",
    "parameters.loss_bad": "parameters.losses.bad",
    "parameters.good_to_bad": "parameters.losses.good_to_bad",
    "parameters.bad_to_good": "parameters.losses.bad_to_good",
}
LAYOUTS: Final[dict[str, tuple[Layout, ...]]] = {
    "delay_nfqueue": (layout_of("counters", DELAY_COUNTERS, _LOSSES),),
    "relay_tap": (layout_of("counters", RELAY_COUNTERS, _LOSSES),),
    "traffic": (layout_of("counters", np.dtype([(name, "=u8") for name in FLOW_COUNTERS])),),
}
"""By program."""

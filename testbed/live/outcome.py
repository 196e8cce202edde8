"""How a run ends, for its page. Pure."""

from testbed.live.messages import Ending
from testbed.record.summary import Summary
from testbed.report import wording


def ending(summary: Summary) -> Ending:
    """The verdict, the headline, the reasons and the notes."""
    times_s = summary.iteration_time_s
    return Ending(
        outcome=summary.outcome,
        meaning=wording.OUTCOMES[summary.outcome],
        headline=wording.headline(summary),
        reasons=list(summary.reasons),
        notes=list(summary.notes),
        iteration_time_s=None if times_s is None else times_s.mean,
        record=summary.record,
    )

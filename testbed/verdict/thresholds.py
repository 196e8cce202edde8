"""Every threshold of the verdict, and of the numbers that it judges, in one place.

`tests/unit/testbed/verdict/test_thresholds.py` has a case on both sides of each of them.
"""

from typing import Final

BYTES_TOLERANCE: Final = 0.01
"""Measured against expected bytes. Headers are computed from the segment size, so on a healthy link the two
agree to well under 0.1 %; 1 % is the smallest error that could be read as an effect of a collective or a
channel."""
BYTES_FLOOR: Final = 20_000
"""Connection set-up, keep-alives and ARP are not in the schedule: about a dozen full frames are always
allowed."""
RATE_TOLERANCE: Final = 0.01
"""Above nominal. A shaped link errs by at most 0.1 % (HTB with a burst of 1 ms); a faster one flatters the
network."""
RUN_QUEUE_DEGRADED: Final = 0.05
RUN_QUEUE_INVALID: Final = 0.20
"""Run-queue delay of the threads that move gradients over exposed communication. A share d of waiting can stretch it by
a factor of up to 1 / (1 - d): 5 % is the size of the differences between transports that experiments look for, and at
20 % (x 1.25) they describe the machine's scheduler rather than the network, if RUN_QUEUE_MATERIAL says so too."""
RUN_QUEUE_MATERIAL: Final = 0.05
"""Of the iterations: what they can have lost by it. Where almost all of communication is hidden, or compressed away,
most of the little that is left may be waiting, and iteration time and scaling factor are right to within this all the
same: such a run is degraded, since what it says of communication is not to be trusted, and not invalid."""
RUN_QUEUE_FLOOR: Final = 0.01
"""Of the iteration: where almost all communication is hidden, run-queue delay may be most of the little that is
exposed, and is not held against it unless it can have lengthened iterations by more than this. The time of all
communication is shown, too, and judged by what it can have lost itself, however little that is of an iteration."""
STAGES_TOLERANCE: Final = 0.03
"""Of the job's time: what no stage accounts for. The size of differences that stages are compared by."""
STEAL_DEGRADED: Final = 0.02
STEAL_INVALID: Final = 0.10
"""CPU time the hypervisor gave to others, over all cores. Above 2 % the same run repeated no longer agrees
with itself to within the 1 to 2 % the other limits work with; with a tenth less the experiment was of a slower machine,
and no wait for a core shows it."""
THROTTLED_DEGRADED: Final = 0.02
THROTTLED_INVALID: Final = 0.10
"""Of the scheduler's periods, those in which a quota that nobody requested was used up; as steal, it takes time from
everything alike."""
BACKGROUND_LATE_DEGRADED: Final = 0.01
BACKGROUND_BLOCKED_NOTED: Final = 0.01
"""Of a background flow's packets: the size of the error that links are allowed."""
BACKLOG_SHORT_DEGRADED: Final = 0.02
BACKLOG_SHORT_INVALID: Final = 0.10
"""Of rate x time, what a link failed to send while packets waited in its queue (Mininet-HiFi's invariant). The first is
the size of the effects that experiments look for; with a tenth less the experiment was of a slower link."""
RETRANSMITTED_DEGRADED: Final = 0.001
"""Retransmitted over expected bytes on a link that loses nothing. Tail-loss probes of a healthy run stay
below; more means timers fired because a receiver did not get to run."""
RETRANSMITTED_EARLY_DEGRADED: Final = 0.005
"""Likewise where probes are sent early. A probe waits for two round trips and at least two ticks of the kernel's clock
(`TCP_TIMEOUT_MIN`). On a link that is as fast as the machine round trips are tens of microseconds, so that each pause
of an interrupt sends one; in slower time the ticks are k times shorter, so that a queue that grows within two round
trips does (0.4 % among four workers of one server at k = 40 and 60). What is sent again takes as much of the time."""
LATENESS_SHARE_DEGRADED: Final = 0.1
LATENESS_FLOOR_S: Final = 300e-6
"""How much later than requested the 99th percentile of a link's packets may be let go, of the delay and at least.
A program that is woken on an idle machine is 0.1 ms late; three times that says it waited for a core. Programs that
delay packets count for how long some packet was later than that (`tolerated_ns()` of native/link_program.h)."""
LATEST_DEGRADED_S: Final = 0.02
"""How much later than requested any packet may be let go. A hundredth of an iteration of 2 s; what takes longer is no
wake-up, but a program that was stopped or starved, and everybody behind the packet waited as long."""
CHANGES_LATE_NOTED_S: Final = 0.02
"""After its time, that a change of the schedule or of a trace had been made: a thread that is woken on a busy machine
is sooner, so changes waited for each other."""
CHANGES_LATE_DEGRADED: Final = 0.01
CHANGES_LATE_FLOOR_S: Final = 0.1
"""The same, of the measured time and at least. Of a schedule or trace that is behind by a share of the time, workers
meet a part that differs from the one they should meet by that share at most, be it shifted or stretched: 1 % is the
size of the error that links are allowed. The floor is a window of a trace (WINDOW_S), over which it is a mean."""
OTHER_LOAD_DEGRADED: Final = 0.10
OTHER_LOAD_INVALID: Final = 0.25
"""Of all cores' time while workers computed without communicating, what other programs used and the hypervisor took; in
the measured iterations, what other programs used where nothing else shows what they cost: computing has no pace,
workers are held to a share of the cores, or a command runs. A share L of it stretches computing that fills the cores by
up to 1 / (1 - L), and flatters what compares with it, or lengthens iterations, by as much."""
OTHER_LOAD_MIN_S: Final = 1.0
"""Of a command's time, for others to be judged: CPU time is counted in ticks of 10 ms, of which two cores have ten in
50 ms, and what lasts no longer is started for what it does."""
ALONE_WAIT_DEGRADED: Final = 0.05
"""Run-queue delay of a worker that computes alone over that time: all cores are its own, so it waits for others."""
OVERRUN_TOLERANCE: Final = 0.02
"""Of an iteration's computing, by how much a gradient may be later than it is due: what repeated runs may differ by. A
worker that is woken from its wait is some 0.1 ms late on an idle machine."""
OVERRUN_DEGRADED: Final = 0.1
"""Of the iterations, those in which some worker was later than that: more, and the median iteration may be one."""
OVERRUN_MEAN_DEGRADED: Final = 0.05
"""Of an iteration's computing, by how much gradients were late in the mean, however few iterations it was in: the mean
iteration may be longer by as much, which is what computing may differ by before a scaling factor is withheld."""
OVERRUN_INVALID: Final = 0.1
"""Of an iteration's computing, by how much gradients were late in the mean: the experiment was of a slower device."""
SENT_TOLERANCE: Final = 0.01
"""Above rate x time + burst: an order of magnitude more than a shaped link errs by."""
UTILIZATION_LIMIT: Final = 1.01
BOUND_TOLERANCE: Final = 0.01
"""Below the bound of an all-reduce's schedule, beside the bursts of its buckets."""
EFFICIENCY_LIMIT: Final = 1.05
"""Of scaling factor and network efficiency: computing without and beside communication differ by some per cent by
chance."""
CONTENTION_TOLERANCE: Final = 0.05
"""By how much computing in the run may differ from computing alone, either way, for a scaling factor to be one: more
says that workers took cores from each other."""
ALONE_ITERATIONS: Final = 8
"""Computed alone, of all workers together, for a scaling factor."""
BUSY_SHARE: Final = 0.01
"""Of its rate: a link that carries less has nothing to do but a heartbeat."""
SATURATED_IDLE_SHARE: Final = 0.05
"""With less of the cores' time idle between two samples, somebody waited for a core."""

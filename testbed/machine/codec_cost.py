"""What the codecs of a plan take of this machine's cores, measured when it is wanted and kept for the same question.

Measured by a process of its own (`transports/execution/codec_cost.py`): whoever asks stays without torch, and a run
whose codec was measured before it is no different from one that found it in the cache.
"""

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Final, NamedTuple

import transports.compression
import transports.execution
from switch_agg.native.cache import cache_directory
from testbed.errors import MissingRequirementError
from testbed.experiment.sweep import value_text
from testbed.hosts.fork_client import FORKING_ENVIRONMENT
from testbed.measure.machine import MachineSample
from testbed.plan.buckets import bucket_shapes
from testbed.plan.plan import Plan
from testbed.system import environment
from transports.compression.base import COMPRESSORS
from transports.execution.trace import CodecTime

CODEC_SHARE: Final = 0.035
"""Of all cores' time, what codecs may take: they want a core at the same moments, all workers' at once and before what
computes. The quickstart, four workers on two cores: runs were degraded for it with 4.3 % and more (sparseloco; others
were valid up to 4.9 %), and with less than 3.5 % all but those of top_k were valid (decision 112)."""
_FILE: Final = "codecs.json"
_TIMEOUT_S: Final = 300.0
_MODULE: Final = "transports.execution.codec_cost"
_SOURCES: Final = (
    (transports.compression, "**/*.py"),
    (transports.compression, "**/*.c"),
    (transports.execution, "gradients.py"),
    (transports.execution, "codec_cost.py"),
)

BUSY_SHARE: Final = 0.1
"""Of all cores' time, by others while a codec was measured: with more it shares memory, caches and maybe a core with
them, and its CPU time is longer than it need be."""
KEPT_S: Final = 30 * 24 * 3600.0
"""What was measured while others were quiet: kernels and clock rates change, and no digest says so."""
BUSY_KEPT_S: Final = 600.0
"""What was measured while they were not: for the command that wanted it, and those that follow at once."""

_Times = tuple[CodecTime, ...]
"""Of each bucket."""


class _Measurement(NamedTuple):
    """As the file has it."""

    measured_at_s: float
    """Seconds since 1970."""
    busy_share: float
    """Of all cores' time meanwhile, by others."""
    times: _Times

    def holds(self, now_s: float) -> bool:
        """Whether nobody has to measure again."""
        return 0 <= now_s - self.measured_at_s <= (BUSY_KEPT_S if self.busy_share > BUSY_SHARE else KEPT_S)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecLoad:
    """What all workers' codecs take of a machine in each iteration."""

    cpu_s: float
    """Of one worker, on the wall."""
    num_workers: int
    num_cores: int
    least_s: float
    """The least that the iteration lasts, in virtual time."""
    busy_share: float = 0.0
    """Of all cores' time, by others while it was measured."""

    @property
    def share(self) -> float:
        """Of all cores' time, undilated."""
        return self.num_workers * self.cpu_s / (self.num_cores * self.least_s)

    @property
    def least_dilation(self) -> int:
        """The smallest whole number of times that time must run slower, so that they take at most CODEC_SHARE."""
        return max(1, ceil(self.share / CODEC_SHARE))

    def __str__(self) -> str:
        text = f"codecs of {self.num_workers} workers take {100 * self.share:.0f} % of {self.num_cores} cores"
        if self.busy_share <= BUSY_SHARE:
            return text
        return f"{text} (measured while other programs took {100 * self.busy_share:.0f} %: too much, maybe)"


def num_cores_here() -> int:
    """That this process may use, and so a run."""
    return len(os.sched_getaffinity(0))


def codec_load(plan: Plan, *, num_cores: int, say: Callable[[str], None] = lambda _: None) -> CodecLoad | None:
    """Measured on this machine, which `say` announces, since it can take a minute; None where nothing is compressed,
    each worker has a core of its own, so that no codec waits for another, or the spec does not say how long
    computing takes. Raises MissingRequirementError where it cannot be measured."""
    table = plan.experiment.workload.timed_layers()
    if table is None or not _is_compressed(plan) or plan.experiment.workers <= num_cores:
        return None
    found = _measurement(plan, say)
    return CodecLoad(
        cpu_s=sum(each.encode_s + each.decode_s for each in found.times),
        num_workers=plan.experiment.workers,
        num_cores=num_cores,
        least_s=max(table.compute_s, plan.prediction.schedule_bound_s),
        busy_share=found.busy_share,
    )


def contending_codec_times(plan: Plan, *, num_cores: int | None = None, measures: bool = True) -> _Times | None:
    """How long each of the plan's buckets keeps each worker's codec while all share the cores (None: this machine's),
    or each has the quota that the plan holds it to, in virtual seconds, for predictions. None where nothing is
    compressed, or there is no torch to measure it with; without `measures` also where nobody has measured it before,
    and what was measured is taken however long ago that was."""
    if not _is_compressed(plan):
        return None
    found = _measurement(plan) if measures and find_spec("torch") is not None else _known(_question(plan), plan)
    if found is None:
        return None
    longer = _wall_s_per_cpu_s(plan, num_cores or num_cores_here())
    return tuple(CodecTime(*(plan.clock.virtual_s(longer * each_s) for each_s in each)) for each in found.times)


def _wall_s_per_cpu_s(plan: Plan, num_cores: int) -> float:
    """Real seconds that a second of a codec's CPU time lasts, on the worker where it lasts longest. A quota of c cores
    stops it for the rest of each period, so that it lasts 1/c seconds; a codec is one thread, which more than a core
    makes no quicker. With `host_cost: real` all have quotas, and a run is refused unless the cores are enough for
    them."""
    by_quota = max((1 / cores for cores in plan.quotas.values()), default=1.0)
    by_others = 1.0 if plan.experiment.host_cost == "real" else plan.experiment.workers / num_cores
    return max(1.0, by_quota, by_others)


def _is_compressed(plan: Plan) -> bool:
    return plan.experiment.compression.compresses and bool(plan.buckets)


def codec_times(plan: Plan) -> _Times:
    """Of each of the buckets of a plan that compresses, for one worker with a core to itself while others are as busy,
    on the wall. Raises MissingRequirementError where it cannot be measured."""
    return _measurement(plan).times


def _measurement(plan: Plan, say: Callable[[str], None] = lambda _: None) -> _Measurement:
    question = _question(plan)
    known = _known(question, plan)
    if known is None or not known.holds(time.time()):
        codec = value_text(COMPRESSORS.dump(plan.experiment.compression))
        num_buckets, num_workers = len(plan.buckets), plan.experiment.workers
        say(f"measuring what {codec} takes of the cores: {num_buckets} buckets, {num_workers} workers ...")
        known = _measured(question, plan.experiment.compression.kind)
        machine = _digest()
        _keep(machine, {**_kept(machine), _key(question): known})  # another may have measured meanwhile
    return known


def _question(plan: Plan) -> str:
    experiment = plan.experiment
    return json.dumps(
        {
            "compression": COMPRESSORS.dump(experiment.compression),
            "num_workers": experiment.workers,
            "num_processes": min(experiment.workers, num_cores_here()),
            "buckets": list(bucket_shapes(experiment, plan.buckets)),
        },
        sort_keys=True,
    )


def _key(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:16]


def _known(question: str, plan: Plan) -> _Measurement | None:
    found = _kept(_digest()).get(_key(question))
    return found if found is not None and len(found.times) == len(plan.buckets) else None


def _kept(machine: str) -> dict[str, _Measurement]:
    """By question, what was measured on this machine with this code; nothing where the file is not whole."""
    try:
        found = json.loads((cache_directory() / _FILE).read_text(encoding="utf-8"))
        if found["machine"] != machine:
            return {}
        return {
            key: _Measurement(
                float(each["measured_at_s"]),
                float(each["busy_share"]),
                tuple(CodecTime(float(encode_s), float(decode_s)) for encode_s, decode_s in each["times"]),
            )
            for key, each in found["codecs"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _keep(machine: str, codecs: Mapping[str, _Measurement]) -> None:
    path = cache_directory() / _FILE
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"machine": machine, "codecs": {key: each._asdict() for key, each in codecs.items()}}
        partial.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as failure:
        raise MissingRequirementError(f"cannot write {path}: {failure.strerror}; set XDG_CACHE_HOME") from failure


def _measured(question: str, kind: str) -> _Measurement:
    what = f"compression: what {kind} takes of this machine's cores is measured"
    if find_spec("torch") is None:
        raise MissingRequirementError(
            f"{what} with torch, which is missing: pip install 'ina-testbed[training]'; or say the factor: "
            "--set dilation=4"
        )
    before, own_s = MachineSample.take(), _children_cpu_s()
    try:
        times = _answer(question)
    except subprocess.TimeoutExpired as expired:
        raise MissingRequirementError(f"{what}, and took longer than {_TIMEOUT_S:g} s") from expired
    except subprocess.CalledProcessError as failed:
        said = failed.stderr.strip().splitlines() or ["it said nothing"]
        raise MissingRequirementError(f"{what}, and that failed with {failed.returncode}: {said[-1]}") from failed
    busy_share = others_share(before, MachineSample.take(), own_s=_children_cpu_s() - own_s)
    return _Measurement(time.time(), busy_share, times)


def others_share(before: MachineSample, after: MachineSample, *, own_s: float) -> float:
    """Of all cores' time between two samples, what was neither idle nor spent by whom `own_s` of CPU time is."""
    own_ticks = own_s * os.sysconf("SC_CLK_TCK")
    return max(0.0, after.busy_share_since(before) - own_ticks / max(1, after.ticks - before.ticks))


def _children_cpu_s() -> float:
    """Of processes that have ended and been waited for, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _answer(question: str) -> _Times:
    """Of a process that measures. Raises CalledProcessError and TimeoutExpired; whatever ends it, its own are gone."""
    # -P and PYTHONPATH: it imports from where this process does, not from the working directory.
    path = os.pathsep.join(each for each in sys.path if each)
    command = [sys.executable, "-P", "-m", _MODULE]
    with subprocess.Popen(
        command,
        env={**os.environ, **FORKING_ENVIRONMENT, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, complaint = process.communicate(question, _TIMEOUT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # not yet waited for: the number is still its own
            raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, said, complaint)
    return tuple(CodecTime(*each) for each in json.loads(said))


def _digest() -> str:
    """Of the machine, and of what computes."""
    digest = hashlib.sha256()
    for fact in (*environment.machine(), _version("numpy"), _version("torch")):
        digest.update(f"{fact}\n".encode())
    for package, pattern in _SOURCES:
        for path in sorted(Path(package.__path__[0]).glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

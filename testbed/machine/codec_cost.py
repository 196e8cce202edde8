"""What the codecs of a plan take of this machine's cores, measured when it is wanted and kept for the same question.

Measured by a process of its own (`transports/execution/codec_cost.py`): whoever asks stays without torch, and a run
whose codec was measured before it is no different from one that found it in the cache.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Final

import transports.compression
import transports.execution
from switch_agg.native.cache import cache_directory
from testbed.errors import MissingRequirementError
from testbed.hosts.fork_client import FORKING_ENVIRONMENT
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

_Times = tuple[CodecTime, ...]
"""Of each bucket."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecLoad:
    """What all workers' codecs take of a machine in each iteration."""

    cpu_s: float
    """Of one worker, on the wall."""
    num_workers: int
    num_cores: int
    least_s: float
    """The least that the iteration lasts, in virtual time."""

    @property
    def share(self) -> float:
        """Of all cores' time, undilated."""
        return self.num_workers * self.cpu_s / (self.num_cores * self.least_s)

    @property
    def least_dilation(self) -> int:
        """The smallest whole number of times that time must run slower, so that they take at most CODEC_SHARE."""
        return max(1, ceil(self.share / CODEC_SHARE))

    def __str__(self) -> str:
        return f"codecs of {self.num_workers} workers take {100 * self.share:.0f} % of {self.num_cores} cores"


def num_cores_here() -> int:
    """That this process may use, and so a run."""
    return len(os.sched_getaffinity(0))


def codec_load(plan: Plan, *, num_cores: int) -> CodecLoad | None:
    """Measured on this machine; None where nothing is compressed, each worker has a core of its own, so that no codec
    waits for another, or the spec does not say how long computing takes. Raises MissingRequirementError where it cannot
    be measured."""
    table = plan.experiment.workload.timed_layers()
    if table is None or not _is_compressed(plan) or plan.experiment.workers <= num_cores:
        return None
    return CodecLoad(
        cpu_s=sum(each.encode_s + each.decode_s for each in codec_times(plan)),
        num_workers=plan.experiment.workers,
        num_cores=num_cores,
        least_s=max(table.compute_s, plan.prediction.schedule_bound_s),
    )


def contending_codec_times(plan: Plan, *, num_cores: int | None = None, measures: bool = True) -> _Times | None:
    """What each of the plan's buckets takes each worker while all share the cores (None: this machine's), in virtual
    time, for predictions. None where nothing is compressed, or there is no torch to measure it with; without `measures`
    also where nobody has measured it before."""
    if not _is_compressed(plan):
        return None
    times = codec_times(plan) if measures and find_spec("torch") is not None else _known(_question(plan), plan)
    if times is None:
        return None
    workers_per_core = max(1.0, plan.experiment.workers / (num_cores or num_cores_here()))
    return tuple(CodecTime(*(plan.clock.virtual_s(workers_per_core * each_s) for each_s in each)) for each in times)


def _is_compressed(plan: Plan) -> bool:
    return plan.experiment.compression.compresses and bool(plan.buckets)


def codec_times(plan: Plan) -> _Times:
    """Of each of the buckets of a plan that compresses, for one worker with a core to itself while others are as busy,
    on the wall. Raises MissingRequirementError where it cannot be measured."""
    question = _question(plan)
    known = _known(question, plan)
    if known is None:
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


def _known(question: str, plan: Plan) -> _Times | None:
    found = _kept(_digest()).get(_key(question))
    return found if found is not None and len(found) == len(plan.buckets) else None


def _kept(machine: str) -> dict[str, _Times]:
    """By question, what was measured on this machine with this code; nothing where the file is not whole."""
    try:
        found = json.loads((cache_directory() / _FILE).read_text(encoding="utf-8"))
        if found["machine"] != machine:
            return {}
        return {
            key: tuple(CodecTime(float(encode_s), float(decode_s)) for encode_s, decode_s in times)
            for key, times in found["codecs"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _keep(machine: str, codecs: Mapping[str, _Times]) -> None:
    path = cache_directory() / _FILE
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"machine": machine, "codecs": codecs}, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as failure:
        raise MissingRequirementError(f"cannot write {path}: {failure.strerror}; set XDG_CACHE_HOME") from failure


def _measured(question: str, kind: str) -> _Times:
    what = f"compression: what {kind} takes of this machine's cores is measured"
    if find_spec("torch") is None:
        raise MissingRequirementError(
            f"{what} with torch, which is missing: pip install 'ina-testbed[training]'; or say the factor: "
            "--set dilation=4"
        )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", _MODULE],
            # -P and PYTHONPATH: it imports from where this process does, not from the working directory.
            env={**os.environ, **FORKING_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
            input=question,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise MissingRequirementError(f"{what}, and took longer than {_TIMEOUT_S:g} s") from expired
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise MissingRequirementError(f"{what}, and that failed with {done.returncode}: {said[-1]}")
    return tuple(CodecTime(*each) for each in json.loads(done.stdout))


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

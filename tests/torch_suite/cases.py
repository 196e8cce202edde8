# mypy: disable-error-code="attr-defined, method-assign, misc, override"
# (torch's test modules carry no types)
"""Runs the tests of torch's own distributed suite, which torch ships, on a backend of one's choice.

`torch.testing._internal.distributed.distributed_test` decides when it is imported which of its tests a backend gets:
its decorators compare the backend's name and the world size with lists. A backend of another name than gloo, nccl,
mpi or ucc is thereby refused half of the tests. So the module is imported under a *guise*, a name in those lists, and
the backend under test is put in its place before a test runs:

    gloo   everything that gloo is given
    mpi    what is left to MPI alone (all_to_all of CPU tensors), although gloo can do it

The ranks of a test are forked from a process that has the module imported: 0.3 s a test rather than 3 s. That process
is forked itself, one for each world size and guise, from one that has torch imported and runs no threads.
"""

import faulthandler
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from testbed.system.kernel import die_with_parent

Backend = Literal["gloo", "testbed"]
Guise = Literal["gloo", "mpi"]
Status = Literal["passed", "failed", "skipped", "not given"]
"""`skipped` while it ran: no GPU, no torchvision. `not given`: a decorator kept it from the guise."""

BACKENDS: Final[Sequence[Backend]] = ("gloo", "testbed")
GUISES: Final[Sequence[Guise]] = ("gloo", "mpi")
BRANCH_ON_NAME: Final = "test_accumulate_gradients_no_sync"
"""These do one thing if the backend is called gloo or mpi, another for nccl, and nothing otherwise. They are left the
guise's name, and the redirection makes the group ours, as it does in any script that asks for gloo."""
NUM_TRAINERS: Final = 4
"""Of the tests of DistributedDataParallel under RPC."""
TIMEOUT_S: Final = 60
"""Of one test. The longest that pass take 10 s on an idle machine."""
BARRIER_S: Final = 45.0
"""Of the barrier by files that torch's tests have between their ranks; torch's own limit is 10 s."""
STACKS_S: Final = 30.0
"""After so long in one test, or when it crashes, a rank writes down where each of its threads is; the report of a
failure has it. (torch's own tells of no crash while another rank has an exception.)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How one test ended on one backend."""

    test: str
    world_size: int
    backend: Backend
    guise: Guise
    status: Status
    detail: str
    """The traceback of what failed, or why it was skipped."""
    duration_s: float


def run_suite(
    world_size: int, backends: Sequence[Backend], folder: Path, *, tests: Sequence[str] | None = None, num_jobs: int = 1
) -> list[Result]:
    """Every test (or those named) on each backend, in `num_jobs` processes; `folder` is for logs.

    Names of which there is no test, at this size, give no result. A test that one guise is not given is tried under the
    next; it is reported once per backend.
    """
    results: dict[tuple[str, Backend], Result] = {}
    wanted = tests
    for guise in GUISES:
        for result in _in_stages(world_size, guise, backends, folder, wanted, num_jobs):
            if result.status != "not given" or (result.test, result.backend) not in results:
                results[result.test, result.backend] = result
        wanted = sorted({result.test for result in results.values() if result.status == "not given"})
    return sorted(results.values(), key=lambda result: (result.test, result.backend))


def _in_stages(
    world_size: int,
    guise: Guise,
    backends: Sequence[Backend],
    folder: Path,
    tests: Sequence[str] | None,
    num_jobs: int,
) -> Iterable[Result]:
    """Fork a process for each share of the tests. Raises RuntimeError when one does not end well."""
    children, parent = [], os.getpid()
    for job in range(num_jobs):
        name = folder / f"{world_size}-{guise}-{job}"
        process = os.fork()
        if process == 0:
            _live(parent, lambda name=name, job=job: _stage(world_size, guise, backends, name, tests, job, num_jobs))
        children.append((process, name))
    for process, name in children:
        _, status = os.waitpid(process, 0)
        if status != 0:
            tail = name.with_suffix(".log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the process that runs tests at world size {world_size} ended with {status}:\n{tail}")
        for line in name.with_suffix(".jsonl").read_text().splitlines():
            yield Result(**json.loads(line))


def _live(parent: int, stage: Callable[[], None]) -> None:
    """A forked process's whole life: it must never return into its parent's code."""
    status = 1
    try:
        die_with_parent(parent)
        stage()
        status = 0
    except BaseException:  # noqa: BLE001 - reported by the status and the log
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _stage(
    world_size: int,
    guise: Guise,
    backends: Sequence[Backend],
    name: Path,
    tests: Sequence[str] | None,
    job: int,
    num_jobs: int,
) -> None:
    log = os.open(name.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ |= {
        "BACKEND": guise,
        "WORLD_SIZE": str(world_size),
        "INIT_METHOD": "file:///decides-which-tests-there-are",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TIMEOUT_S),
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TP_SOCKET_IFNAME": "lo",
        "TESTBED_ADDRESS": "127.0.0.1",
    }
    tempfile.tempdir = str(name.parent)  # torch leaves its tests' files
    loader = unittest.TestLoader()
    suite_of = {test: suite for suite in _suites(world_size) for test in loader.getTestCaseNames(suite)}
    with name.with_suffix(".jsonl").open("w") as file:
        for test in [test for test in (suite_of if tests is None else tests) if test in suite_of][job::num_jobs]:
            for backend in backends:
                os.write(2, f"===== {test} on {backend}\n".encode())
                file.write(json.dumps(asdict(_run_one(suite_of[test], test, world_size, backend, guise))) + "\n")
                file.flush()


def _suites(world_size: int) -> list[type[Any]]:
    """Classes of torch's tests, forked. Set `backend` on one before each test."""
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    from transports.torch_backend.process_group import ProcessGroupOptions

    ProcessGroupOptions.from_environment()  # imports what every rank would import anew
    common_distributed.TIMEOUT_OVERRIDE.clear()
    for backends in (
        distributed_test.PROFILING_SUPPORTED_BACKENDS,
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
    ):
        backends.append("testbed")
    meet = distributed_test.Barrier.sync

    def meet_in_time(wait_for: int | None = None, timeout: float = 0.0) -> None:
        meet(wait_for, max(timeout, BARRIER_S))  # the backend is tested, not what else the machine does

    distributed_test.Barrier.sync = meet_in_time

    class Suite(_Forked, distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        @classmethod
        def prepare(cls, test_name: str) -> None:
            if not test_name.startswith(BRANCH_ON_NAME):
                distributed_test.BACKEND = cls.backend
            distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]
            # Not which backend runs (that is above), but the one whose small worlds are not skipped.
            os.environ["BACKEND"] = "mpi"

    return [Suite, *(_suites_under_rpc() if world_size == NUM_TRAINERS else [])]


def _suites_under_rpc() -> list[type[Any]]:
    """DistributedDataParallel inside and around models whose parts are called remotely: they name gloo, and so get what
    the redirection gives. Four trainers, whatever the world."""
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.distributed import ddp_under_dist_autograd_test as under_rpc
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

    assert under_rpc.NUM_TRAINERS == NUM_TRAINERS

    class Comparison(_Forked, under_rpc.DdpComparisonTest, TensorPipeRpcAgentTestFixture, MultiProcessTestCase):
        pass

    class UnderAutograd(
        _Forked, under_rpc.DdpUnderDistAutogradTest, TensorPipeRpcAgentTestFixture, MultiProcessTestCase
    ):
        pass

    return [Comparison, UnderAutograd]


class _Forked:
    """Before one of torch's test cases with several processes: they are forked, and none is left."""

    backend: Backend
    processes: list[Any]
    file_name: str
    stacks: str = ""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)

    def tearDown(self) -> None:
        ended = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
            process.join()
        for path in sorted(Path(self.file_name).parent.glob(f"{Path(self.file_name).name}.stacks*")):
            self.stacks += f"{path.suffix[1:]}: {path.read_text()}\n"
            path.unlink()
        self.stacks += f"exit statuses: {ended}\n"
        super().tearDown()

    @classmethod
    def prepare(cls, test_name: str) -> None:
        """In a rank, before it begins."""

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **options: Any) -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        assert parent.pid is not None
        die_with_parent(parent.pid)
        stacks = Path(f"{file_name}.stacks{rank}").open("w")  # noqa: SIM115 - as long as the process
        faulthandler.enable(stacks)
        faulthandler.dump_traceback_later(STACKS_S, file=stacks)
        cls.prepare(test_name)
        if cls.backend == "testbed":
            _redirect(Path(f"{file_name}.redirected"))
        super()._run(rank, test_name, file_name, pipe, **options)


def _redirect(record: Path) -> None:
    """As `testbed exec --backend testbed` does: a group for which a test names gloo is ours too, instead of gloo's."""
    from transports.torch_backend.redirection import install

    record.touch()
    install("testbed", record)


def _run_one(suite: type[Any], test: str, world_size: int, backend: Backend, guise: Guise) -> Result:
    suite.backend = backend
    case, outcome = suite(test), unittest.TestResult()
    reason = _not_given(getattr(suite, test))
    start_s = time.monotonic()
    if reason is None:
        case.run(outcome)
    wrong = "".join(trace for _, trace in (*outcome.errors, *outcome.failures))
    wrong += case.stacks if wrong else ""
    status: Status = "passed"
    if reason is not None:
        status = "not given"
    elif wrong:
        status = "failed"
    elif outcome.skipped:
        status, reason = "skipped", outcome.skipped[0][1]
    return Result(
        test=test,
        world_size=world_size,
        backend=backend,
        guise=guise,
        status=status,
        detail=wrong or reason or "",
        duration_s=round(time.monotonic() - start_s, 2),
    )


def _not_given(method: Any) -> str | None:
    """Why a decorator skips it, or None."""
    return str(method.__unittest_skip_why__) if getattr(method, "__unittest_skip__", False) else None

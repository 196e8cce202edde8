"""What this machine can do, found out by trying it in a throw-away network namespace, and the fix for what is missing.

Works without root: what needs root is then tried inside an unprivileged user namespace where the kernel allows it.
"""

import functools
import importlib.metadata
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from switch_agg.dataplanes.base import data_plane, data_planes
from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.delay_backends.base import VETH, delay_backends
from testbed.experiment.experiment import Experiment
from testbed.experiment.host import missing_cores
from testbed.experiment.link import BackendName
from testbed.hosts.base import runtime_driver
from testbed.hosts.cgroups import available_controllers, fix, needed_controllers
from testbed.hosts.clean import FORGET_FIX, leftovers
from testbed.hosts.docker_cli import FIX as DOCKER_FIX
from testbed.hosts.docker_cli import docker_here
from testbed.links.htb import Shaper
from testbed.machine.fit import known_costs
from testbed.measure.run_queue_trace import RunQueueTrace
from testbed.metrics.families import PORT
from testbed.metrics.server import FIX, PROGRAM
from testbed.plan.plan import Plan, make_plan
from testbed.plan.requested_links import unsupported
from testbed.plan.silence import out_of_time
from testbed.system.idle import REQUESTS
from testbed.system.kernel import has_sysctl, require_descriptors
from testbed.system.native import build
from testbed.system.native.libraries import build_libraries
from transports.errors import UnsupportedError

if TYPE_CHECKING:  # its module deploys, which needs extras of the package
    from testbed.machine.budget import Budget

_DESCRIPTORS: Final = 512
"""Files that a run may have open at once: sockets of the sampler and of the control plane, namespaces, logs, ..."""
_DESCRIPTORS_PER_WORKER: Final = 64
"""... and of each worker: its node's and switch port's, its process', and in the worker its peers' connections."""

Severity = Literal["needed", "optional"]
Planner = Callable[[Experiment], Plan]
"""Plans a spec on this machine; raises SpecError and MissingRequirementError."""
APT_PACKAGES: Final = {
    "mnexec": "mininet",
    # Mininet refuses to start without it, and ends the process.
    "ifconfig": "net-tools",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "sysctl": "procps",
}
PYTHON_PACKAGES: Final = {
    "mininet": "emulation",
    "torch": "training",
    "scikit-learn": "training",
    "grpcio": "control",
    "prometheus-client": "metrics",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that was tried."""

    name: str
    severity: Severity
    ok: bool
    found: str
    fix: str = ""


def _try_in_namespace(commands: Sequence[str]) -> str:
    """Run tc/ip commands in a fresh network namespace; returns what went wrong, or nothing."""
    argv = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    script = "set -e\n" + "\n".join(commands)
    try:
        done = subprocess.run([*argv, "sh"], input=script, capture_output=True, text=True, timeout=20, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]


_SHAPER: Final = Shaper.of(interface="v0", rate_bps=1e8, queue_bytes=1_000_000)


@functools.cache
def missing_for_backend(name: BackendName) -> str:
    """What went wrong when the smallest delay was made with it in a throw-away namespace; empty when it works."""
    backend = delay_backends()[name]
    missing = [tool for tool in backend.tools if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is missing"
    try:
        program = "" if backend.program is None else str(build.program(backend.program.name))
    except MissingRequirementError as error:
        return str(error)
    with tempfile.TemporaryDirectory(prefix="testbed-doctor-") as directory:
        return _try_in_namespace(backend.trial(program, directory))


@functools.cache
def missing_for_data_plane(kind: str) -> str:
    """What went wrong when the least of what adds in a switch was tried; empty when it works."""
    return data_plane(kind).problem()


def missing_for_run_queue_trace() -> str:
    """What went wrong when waits for a core were to be traced; empty when it works."""
    try:
        RunQueueTrace().close()
    except MissingRequirementError as error:
        return str(error)
    return ""


def plan_in_theory(experiment: Experiment, *, say: Callable[[str], None] = lambda _: None) -> Plan:
    """The plan of :func:`plan_here`, dilated alike and with the same costs of hosts, for models: whether this machine
    has the cores and the kernel for a run does not matter. `say` announces what is measured for it. Raises SpecError,
    and MissingRequirementError where `dilation: auto` goes by what nobody has measured."""

    num_cores = len(os.sched_getaffinity(0))

    def planned_at(dilation: float, reason: str = "") -> Plan:
        return make_plan(
            experiment,
            works=lambda name: not missing_for_backend(name),
            costs=known_costs(),
            num_cores=num_cores,
            chosen_dilation=(dilation, reason),
        )

    if experiment.dilation != "auto":
        return planned_at(1.0)
    from testbed.machine.budget import chosen_dilation, known_budget
    from testbed.machine.codec_cost import codec_load

    if undilatable := experiment.undilatable():  # requested, even where this machine would need none
        raise SpecError("\n".join(undilatable))

    def planned_to_run_at(dilation: float) -> Plan:
        plan = planned_at(dilation)
        if plan.delay_backend is not None and missing_for_backend(plan.delay_backend):
            raise SpecError(f"link: delay by {plan.delay_backend} does not work here")
        return plan

    budget, codecs = known_budget(), partial(codec_load, num_cores=num_cores, say=say)
    if not all(map(missing_for_backend, delay_backends())):
        with suppress(SpecError):  # whatever is wrong at every dilation is said below
            return planned_at(*chosen_dilation(budget, planned_to_run_at, codecs, num_cores=num_cores))
    return planned_at(*chosen_dilation(budget, planned_at, codecs, num_cores=num_cores))


def plan_here(experiment: Experiment, *, say: Callable[[str], None] = lambda _: None) -> Plan:
    """The plan of a run on this machine: `link.backend: auto` is the first backend that can do it and works here. `say`
    announces what is measured for it.

    Raises SpecError for combinations that cannot be right, for cores that this machine has not and for timeouts that
    cannot be kept; MissingRequirementError for transports that its kernel has not.
    """
    plan = plan_in_theory(experiment, say=say)
    if missing := missing_cores(plan.hosts, frozenset(os.sched_getaffinity(0))):
        raise SpecError("\n".join(missing))
    if late := out_of_time(plan):
        raise SpecError("\n".join(late))
    if plan.experiment.host_cost == "real":
        _require_cores_for_links(plan)
    if missing := _missing_for_transports(plan):
        raise MissingRequirementError("this machine cannot run that plan:\n  " + "\n  ".join(missing))
    return plan


def _require_cores_for_links(plan: Plan) -> None:
    """Raises SpecError where workers' quotas leave links no cores."""
    from testbed.machine.budget import WORKERS_SHARE

    num_cores, dilation = len(os.sched_getaffinity(0)), plan.clock.dilation
    share = plan.quota_cores / (WORKERS_SHARE * num_cores)
    if share <= 1:
        return
    raise SpecError(
        f"host_cost: real gives {plan.experiment.workers} workers {plan.quota_cores:g} cores at dilation {dilation:g}, "
        f"and of the {num_cores} that this machine has they may take {100 * WORKERS_SHARE:g} %, since links need the "
        f"rest; allowed: dilation: {math.ceil(dilation * share)} or more, or auto, smaller hosts.*.cpu, or host_cost: "
        "faster"
    )


def congestion_controls() -> list[str]:
    """What the kernel offers now; more may come as modules. Empty where it does not say."""
    path = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    return path.read_text().split() if path.exists() else []


def _is_module(name: str) -> bool:
    """Whether the kernel would load it when somebody asks for it."""
    listed = Path("/lib/modules", os.uname().release, "modules.dep")
    return listed.exists() and f"/tcp_{name}.ko" in listed.read_text()


def _missing_for_transports(plan: Plan) -> list[str]:
    """What of the plan's channels this kernel has not, as far as anybody may see without root."""
    channel, workload = plan.experiment.channel, plan.experiment.workload
    requested = {plan.congestion: "channel.congestion"}
    for each in workload.channels(channel):
        if each.congestion_control is not None:
            requested.setdefault(each.congestion_control, f"workload.stacks: {each.kind}:congestion")
    available = congestion_controls()
    missing = [
        f"{where}: this kernel has no {name} (it has {', '.join(available)}): modprobe tcp_{name}, or choose one it has"
        for name, where in requested.items()
        if available and name not in available and not _is_module(name)
    ]
    for each in {type(each): each for each in (channel, *workload.channels(channel))}.values():
        try:
            each.require_kernel()
        except UnsupportedError as error:
            missing.append(f"channel: {error}")
    return missing


def examine() -> list[Check]:
    """Try everything."""
    checks = [
        Check(
            name="root",
            severity="needed",
            ok=os.geteuid() == 0,
            found=f"uid {os.geteuid()}",
            fix="run with sudo (plan, report, schema and doctor need no root)",
        ),
        Check(
            name="python",
            severity="needed",
            ok=sys.version_info >= (3, 11),
            found=sys.version.split()[0],
            fix="install Python 3.11 or newer",
        ),
    ]
    for program, package in APT_PACKAGES.items():
        path = shutil.which(program)
        checks.append(
            Check(
                name=program,
                severity="needed",
                ok=path is not None,
                found=path or "missing",
                fix=f"apt-get install --no-install-recommends {package}",
            )
        )
    for package, extra in PYTHON_PACKAGES.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "missing"
        checks.append(
            Check(
                name=package,
                severity="needed",
                ok=found != "missing",
                found=found,
                fix=f"pip install 'ina-testbed[{extra}]', or make setup in a clone",
            )
        )
    checks.append(_compiler_check())
    checks += _kernel_checks()
    checks.append(_ray_check())
    checks.append(_docker_check())
    checks.append(_leftovers_check())
    checks.append(_prometheus_check())
    checks.append(_port_check(PORT))
    return checks


def _ray_check() -> Check:
    try:
        found = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        found = "missing"
    return Check(
        name="ray",
        severity="optional",
        ok=found != "missing",
        found=found if found != "missing" else "missing: sweeps on many machines (testbed sweep --engine ray)",
        fix="pip install 'ina-testbed[ray]', on every machine of the cluster in the same version",
    )


def _compiler_check() -> Check:
    """Whether what is in C has been built, or can be."""
    try:
        libraries = build_libraries()
        found, ok = f"works (built in {', '.join(sorted({str(path.parent) for path in libraries}))})", True
    except MissingRequirementError as error:
        found, ok = str(error), False
    return Check(
        name="C compiler",
        severity="needed",
        ok=ok,
        found=found,
        fix="apt-get install --no-install-recommends gcc libc6-dev linux-libc-dev; without it channels tcp, mptcp "
        "and udp, int8, fp8 and onebit, delays by nfqueue and tap, and background traffic are refused",
    )


def _kernel_checks() -> list[Check]:
    shaping = _try_in_namespace([VETH, *(f"tc {line}" for line in _SHAPER.commands())])
    untraced = missing_for_run_queue_trace()
    available = congestion_controls()
    default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return [
        Check(
            name="veth + htb + bfifo",
            severity="needed",
            ok=not shaping,
            found=shaping or "works",
            fix="a kernel with CONFIG_VETH, CONFIG_NET_SCH_HTB (modprobe veth sch_htb)",
        ),
        *(
            Check(
                name=f"delay by {backend.kind}",
                severity="optional",
                ok=not missing_for_backend(backend.kind),
                found=missing_for_backend(backend.kind) or "works",
                fix=f"needs {backend.needs}",
            )
            for backend in delay_backends().values()
        ),
        *(
            Check(
                name=f"sums in the switch by {kind}",
                severity="optional",
                ok=not missing_for_data_plane(kind),
                found=missing_for_data_plane(kind) or "works",
                fix=f"{data_plane(kind).needs}; or another collective.dataplane",
            )
            for kind in data_planes()
        ),
        Check(
            name="waits for a core, traced",
            severity="optional",
            ok=not untraced,
            found=untraced or "works",
            fix="apt-get install --no-install-recommends clang libbpf-dev, and root; else verdicts go by sums of "
            "waits, which are more than these can have cost",
        ),
        Check(
            name="cores kept awake",
            severity="optional",
            ok=REQUESTS.exists(),
            found="works" if REQUESTS.exists() else f"missing: {REQUESTS}",
            fix="a kernel with CONFIG_CPU_IDLE (in a container: its device); else short messages take as long as cores "
            "need to wake up, and that differs from minute to minute",
        ),
        Check(
            name="congestion control",
            severity="needed",
            ok="cubic" in available,
            found=f"{', '.join(available)} (default {default})",
            fix="modprobe tcp_cubic",
        ),
        *(
            Check(
                name=f"host limits: {name}",
                severity="optional",
                ok=controller is not None,
                found=f"cgroup v{controller.version}, {controller.mount_point}" if controller else "missing",
                fix=fix(name),
            )
            for name, controller in available_controllers().items()
        ),
        Check(
            name="cores",
            severity="optional",
            ok=(os.cpu_count() or 1) >= 2,
            found=str(os.cpu_count()),
            fix="with one core, computing and communicating share it: expect `degraded` verdicts",
        ),
    ]


def _prometheus_check() -> Check:
    path = shutil.which(PROGRAM)
    return Check(
        name="runs watched by Prometheus", severity="optional", ok=path is not None, found=path or "missing", fix=FIX
    )


def _docker_check() -> Check:
    found, ok = "", False
    try:
        facts = docker_here().facts()
        found, ok = facts.text, not facts.has("rootless")
    except MissingRequirementError as error:
        found = str(error).partition(" apt-get")[0]
    return Check(
        name="runtime: docker",
        severity="optional",
        ok=ok,
        found=found,
        fix=f"{DOCKER_FIX}; a rootless daemon's containers cannot be given emulated links",
    )


def _leftovers_check() -> Check:
    """What the next run cannot remove by itself."""
    try:
        left = [each for each in leftovers() if each.problem]
        found = "; ".join(f"container {each.what}: {each.problem}" for each in left)
    except MissingRequirementError as error:
        found = str(error)
    return Check(
        name="containers of dead runs", severity="optional", ok=not found, found=found or "none", fix=FORGET_FIX
    )


def _port_check(port: int) -> Check:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            free = True
        except OSError:
            free = False
    return Check(
        name=f"metrics port {port}",
        severity="optional",
        ok=free,
        found="free" if free else "in use",
        fix="a run takes any free port instead and names it; --set metrics.port=null switches the endpoint off",
    )


def measure(*, on_step: Callable[[str], None]) -> "Budget":
    """What this machine carries, kept for `testbed plan`. Raises MissingRequirementError."""
    from testbed.machine.budget import keep
    from testbed.machine.capacity import measure_budget

    budget = measure_budget({name: missing_for_backend(name) for name in delay_backends()}, on_step=on_step)
    keep(budget)
    return budget


def plan_to_run(experiment: Experiment, *, say: Callable[[str], None]) -> Plan:
    """The plan of :func:`plan_here`. Where that goes by what this machine carries and nobody has measured it, root
    measures first, and says so. Raises what :func:`plan_here` does."""
    from testbed.machine.budget import UnknownBudgetError

    try:
        return plan_here(experiment, say=say)
    except UnknownBudgetError:
        if os.geteuid() != 0:
            raise
    say("measuring what this machine carries, once: `dilation: auto` goes by it ...")
    budget = measure(on_step=lambda _: None)
    carries = f"{budget.undelayed.superframe_bps / 1e9:.3g} Gbit/s"
    busy = f"other programs used {budget.busy_share:.0%} of the cores"
    say(f"measured: {carries}; {busy} (`testbed doctor` measures again)")
    return plan_here(experiment, say=say)


def require_delay(plan: Plan) -> None:
    """Raise MissingRequirementError when the delays of this plan cannot be had here. Without root nobody can tell."""
    if os.geteuid() == 0 and (missing := _missing_for_delays(plan)):
        raise MissingRequirementError("this machine cannot run that plan:\n  " + "\n  ".join(missing))


def _missing_for_delays(plan: Plan) -> list[str]:
    if plan.delay_backend and (problem := missing_for_backend(plan.delay_backend)):
        return [_no_delay(plan, plan.delay_backend, problem)]
    return []


def _no_delay(plan: Plan, backend: BackendName, problem: str) -> str:
    """Why there is no such delay here, how to get it, and why no other backend that works here makes it."""
    lines = [f"link: delay by {backend} does not work here ({problem}); it needs {delay_backends()[backend].needs}"]
    for other in delay_backends():
        if other != backend and not missing_for_backend(other):
            reasons = unsupported(
                plan.all_configured,
                other,
                superframes=plan.experiment.packet_bytes > plan.experiment.mtu,
                bridged=not plan.experiment.switch.routes,
                works=lambda name: not missing_for_backend(name),
            )
            lines += [f"  {other} works here, but {reason}" for reason in reasons]
            lines += [] if reasons else [f"  {other} works here: --set link.backend={other}"]
    return "\n  ".join(lines)


def require_root() -> None:
    """Raise MissingRequirementError unless this process may make namespaces."""
    if os.geteuid() != 0:
        raise MissingRequirementError(
            "running needs root, for network namespaces and tc: use sudo (plan, report, schema and doctor do not)"
        )


def missing_packages() -> list[str]:
    """Of other Python packages, those that a run needs and that are not installed, each with its fix."""
    missing = []
    for package, extra in PYTHON_PACKAGES.items():
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{package} is missing: pip install 'ina-testbed[{extra}]'")
    return missing


def require_packages() -> None:
    """Raise MissingRequirementError where what runs an experiment could not even be imported."""
    if missing := missing_packages():
        raise MissingRequirementError("running needs more than is installed:\n  " + "\n  ".join(missing))


def require(plan: Plan) -> None:
    """Raise MissingRequirementError for everything that this plan needs and is missing, before anything is made."""
    from testbed.machine.budget import known_budget, refuse_excess

    require_root()
    require_descriptors(_DESCRIPTORS + _DESCRIPTORS_PER_WORKER * plan.experiment.workers)
    missing = [
        f"{name} is missing: apt-get install --no-install-recommends {package}"
        for name, package in APT_PACKAGES.items()
        if shutil.which(name) is None
    ]
    missing += missing_packages()
    workload = plan.experiment.workload
    requirements = [channel.require for channel in workload.channels(plan.experiment.channel)]
    requirements += [stack.require for stack in workload.baselines(plan.experiment.stack)]
    for requirement in requirements:
        try:
            requirement()
        except UnsupportedError as error:
            missing.append(str(error))
    missing += _missing_for_transports(plan)
    missing += _missing_for_delays(plan)
    missing += [
        f"collective.dataplane: {kind} does not work here ({problem}); or a process adds: "
        "--set collective.dataplane=reference"
        for kind in dict.fromkeys(each.collective.dataplane for each in plan.aggregators)
        if (problem := missing_for_data_plane(kind))
    ]
    if plan.experiment.metrics.prometheus is not None and shutil.which(PROGRAM) is None:
        missing.append(f"metrics.prometheus: {PROGRAM} is missing: {FIX}; or run without it")
    missing += runtime_driver(plan).missing()
    controllers = available_controllers()
    missing += [
        f"hosts.{worker}: this limit needs the {name} controller of control groups, which is not mounted: {fix(name)}"
        for worker, limits in ((f"w{rank}", plan.limits(rank)) for rank in range(plan.experiment.workers))
        for name in needed_controllers(limits)
        if controllers[name] is None
    ]
    if plan.needs_multipath and not has_sysctl("net.ipv4.fib_multipath_hash_fields"):
        missing.append(
            f"topology: {plan.experiment.topology.kind} has several equal paths, and this kernel cannot choose "
            "among them by addresses and ports: Linux 5.13 or newer with CONFIG_IP_ROUTE_MULTIPATH, or a topology with "
            "one path (star, dumbbell)"
        )
    refuse_excess(plan, known_budget())
    if missing:
        raise MissingRequirementError("this machine cannot run that plan:\n  " + "\n  ".join(missing))

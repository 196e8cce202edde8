"""What a result was measured on: commit, versions, kernel, CPU, settings. Recorded beside every number."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from testbed.system.sources import code_digest

PACKAGES: Final = (
    "torch",
    "numpy",
    "grpcio",
    "mininet",
    "polars",
    "prometheus-client",
    "pydantic",
    "aioquic",
    "scikit-learn",
    "mpi4py",
    "openmpi",
    "ina-testbed",
)
DECIDING_SYSCTLS: Final = (
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_limit_output_bytes",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "kernel.sched_autogroup_enabled",
)
"""Those that decide how the same run goes: hosts' namespaces begin with the machine's buffers."""
SYSCTLS: Final = (
    # Every route has a congestion control of its own.
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    *DECIDING_SYSCTLS,
)


def describe() -> dict[str, Any]:
    """Everything that may explain a difference between two machines."""
    return {
        "commit": _commit(),
        "code_sha256": code_digest(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "tools": {name: _said([name, "-V"]) for name in ("tc", "ip", "iptables")},
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "num_cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": os.getloadavg(),
        **settings(),
    }


def settings() -> dict[str, Any]:
    """What somebody may change while this process goes on."""
    return {"num_usable_cores": num_usable_cores(), "sysctls": {name: _sysctl(name) for name in SYSCTLS}}


def machine() -> tuple[str, ...]:
    """Kernel, processor and the cores that may be used: what decides how fast and how exactly links are emulated."""
    cores = str(os.cpu_count()), str(num_usable_cores())
    return platform.release(), platform.version(), platform.machine(), cpu_model() or "", *cores


def num_usable_cores() -> int:
    """Those that this process may use: fewer than there are below `taskset`, or in a cpuset."""
    return len(os.sched_getaffinity(0))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit this code was run from, `+` if the tree differs from it; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    commit = _said(["git", "-C", str(root), "rev-parse", "HEAD"])
    changed = _said(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return f"{commit}+" if commit and changed else commit


def _said(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def cpu_model() -> str | None:
    """As the kernel has it; None where it has none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def is_virtual() -> bool:
    """Whether a hypervisor says that it runs this machine (CPUID; x86 alone)."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return any(line.startswith("flags") and "hypervisor" in line.split() for line in lines)


def _sysctl(name: str) -> str | None:
    path = Path("/proc/sys", *name.split("."))
    return " ".join(path.read_text().split()) if path.is_file() else None

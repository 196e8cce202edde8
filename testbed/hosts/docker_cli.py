"""Docker by its command line: it finds its daemon as the user's shell does (contexts, DOCKER_HOST), and its answers are
JSON. Everything that a run makes carries the run's id as a label and is found by it."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from testbed.errors import MissingRequirementError

RUN_LABEL: Final = "org.ina-testbed.run"
_TIMEOUT_S: Final = 60.0
_DEFAULT_ENDPOINT: Final = "unix:///var/run/docker.sock"
FIX: Final = "apt-get install --no-install-recommends docker.io, and start its service (systemctl start docker)"


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonFacts:
    """What a daemon says of itself (`docker info`)."""

    version: str
    cgroup_driver: str
    cgroup_version: str
    storage_driver: str
    security: tuple[str, ...]
    """`name=seccomp,profile=default`, `name=rootless`, `name=userns`."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "DaemonFacts":
        """The answer as JSON. Daemons before 20.10 do not say the version of control groups: it is 1."""
        return cls(
            version=str(answer["ServerVersion"]),
            cgroup_driver=str(answer.get("CgroupDriver", "")),
            cgroup_version=str(answer.get("CgroupVersion", "1")),
            storage_driver=str(answer.get("Driver", "")),
            security=tuple(answer.get("SecurityOptions") or ()),
        )

    def has(self, option: str) -> bool:
        """Whether it runs with `rootless`, `userns` or `seccomp`."""
        return any(f"name={option}" in entry.split(",") for entry in self.security)

    @property
    def text(self) -> str:
        """`20.10.24, cgroup v1 by cgroupfs, overlay2, rootful, seccomp`."""
        parts = [self.version, f"cgroup v{self.cgroup_version} by {self.cgroup_driver}", self.storage_driver]
        parts += ["rootless" if self.has("rootless") else "rootful"]
        parts += [option for option in ("userns", "seccomp") if self.has(option)]
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerFacts:
    """What the daemon says of a container (`docker inspect`)."""

    pid: int
    """Of its first process; 0 once that has ended."""
    status: int
    """Its exit status, once it has ended."""
    running: bool
    out_of_memory: bool
    image: str
    """The image's id: what the name meant when the container was made."""


class Docker:
    """One daemon."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def call(self, *arguments: str, timeout_s: float = _TIMEOUT_S) -> str:
        """Run `docker ARGUMENTS` and return what it prints. Raises MissingRequirementError with what it said."""
        what = f"docker {arguments[0]}"
        try:
            done = subprocess.run(
                ["docker", "--host", self.endpoint, *arguments],
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise MissingRequirementError(f"docker is missing: {FIX}") from error
        except subprocess.TimeoutExpired as error:
            raise MissingRequirementError(f"{what}: {self.endpoint} has not answered within {timeout_s:g} s") from error
        if done.returncode != 0:
            said = done.stderr.strip().removesuffix("See 'docker run --help'.").strip()
            fix = f" {FIX}" if "Cannot connect to the Docker daemon" in said else ""
            raise MissingRequirementError(f"{what}: status {done.returncode}: {said}{fix}")
        return done.stdout

    def facts(self) -> DaemonFacts:
        """Of the daemon. Raises MissingRequirementError when none answers."""
        answer = json.loads(self.call("info", "--format", "{{json .}}"))
        if not answer.get("ServerVersion"):  # the client answers alone, with errors among its answers
            raise MissingRequirementError(f"{'; '.join(answer.get('ServerErrors') or ['no daemon answers'])}: {FIX}")
        return DaemonFacts.of(answer)

    def image_id(self, image: str) -> str | None:
        """What the name means now; None if there is no such image here."""
        try:
            return self.call("image", "inspect", "--format", "{{.Id}}", image).strip()
        except MissingRequirementError as error:
            if "No such image" in str(error):
                return None
            raise

    def pull(self, image: str) -> None:
        """Fetch an image from its registry. Raises MissingRequirementError."""
        self.call("pull", "--quiet", image, timeout_s=3600.0)

    def inspect(self, container: str, *, timeout_s: float = _TIMEOUT_S) -> ContainerFacts | None:
        """What the daemon knows of the container; None if there is no such container (any more)."""
        try:
            (answer,) = json.loads(self.call("container", "inspect", container, timeout_s=timeout_s))
        except MissingRequirementError as error:
            if "No such container" in str(error):
                return None
            raise
        state = answer["State"]
        return ContainerFacts(
            pid=int(state["Pid"]),
            status=int(state["ExitCode"]),
            running=bool(state["Running"]),
            out_of_memory=bool(state["OOMKilled"]),
            image=str(answer["Image"]),
        )

    def log_tail(self, container: str, *, num_lines: int = 40) -> str:
        """The end of what its first process printed; nothing where the daemon cannot say."""
        try:
            done = subprocess.run(
                ["docker", "--host", self.endpoint, "logs", "--tail", str(num_lines), container],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (FileNotFoundError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    def of_run(self, run_id: str) -> list[str]:
        """The names of the run's containers, running or not. Raises MissingRequirementError when nobody answers."""
        label = f"label={RUN_LABEL}={run_id}"
        return sorted(self.call("ps", "--all", "--filter", label, "--format", "{{.Names}}").split())

    def remove(self, containers: Sequence[str]) -> None:
        """End and remove them, all at once; those that are gone already are no error."""
        if not containers:
            return
        try:
            self.call("rm", "--force", "--volumes", *containers)
        except MissingRequirementError as error:
            if "No such container" not in str(error):
                raise


def docker_here() -> Docker:
    """The daemon that `docker` would talk to. Raises MissingRequirementError when there is no `docker`."""
    if host := os.environ.get("DOCKER_HOST"):
        return Docker(host)
    try:
        done = subprocess.run(
            ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise MissingRequirementError(f"docker is missing: {FIX}") from error
    except subprocess.TimeoutExpired as error:
        raise MissingRequirementError(f"docker context inspect has not ended within {_TIMEOUT_S:g} s") from error
    return Docker(done.stdout.strip() or _DEFAULT_ENDPOINT)

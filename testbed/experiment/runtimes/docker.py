"""Workers, parameter servers and aggregators that are processes run in Docker containers: an image of the user's, not
root, limited by Docker."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, field_validator

from testbed.experiment.runtimes.base import RUNTIMES, Runtime
from testbed.experiment.topologies.base import PARTICIPANTS
from testbed.experiment.workloads.command import Command

if TYPE_CHECKING:
    from testbed.hosts.base import RunningRuntime
    from testbed.hosts.docker_cli import Docker
    from testbed.plan.plan import Plan
    from testbed.system.run_state import RunState

_log: Final = logging.getLogger(__name__)

DEFAULT_IMAGE: Final = "ina-testbed-worker"
_IMAGE: Final = re.compile(r"[a-z0-9][a-zA-Z0-9._/:@-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@RUNTIMES.register
class DockerContainers(Runtime):
    """Docker containers without a network but the emulated one, without capabilities, not root."""

    image: str = DEFAULT_IMAGE
    """Any image with Python and this package, by name or id; `make image` builds the default."""
    pull: Literal["never", "missing", "always"] = "never"
    """Whether to fetch the image from its registry: never, if it is not here, or before every run."""
    python: str = "python3"
    """The interpreter in the image that has this package."""
    user: int = Field(10001, ge=1, le=2**31 - 1)
    """uid and gid of everything that runs in the containers; root is refused."""
    mounts: tuple[str, ...] = ()
    """Absolute paths of this machine that containers see at the same path, read-only: data, a checkout. A
    command (`testbed exec`) sees the directory that it was typed in as well."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables for everything in the containers."""

    @field_validator("image")
    @classmethod
    def _image_name(cls, image: str) -> str:
        if not _IMAGE.fullmatch(image):
            raise ValueError(f"{image!r} is no name of an image; write one such as my/train:latest")
        return image

    @field_validator("mounts", mode="before")
    @classmethod
    def _one_mount(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("mounts")
    @classmethod
    def _absolute(cls, mounts: tuple[str, ...]) -> tuple[str, ...]:
        for path in mounts:
            if not path.startswith("/") or ":" in path or path == "/":
                raise ValueError(f"{path!r}: write an absolute path without a colon, and not all of the machine")
        return mounts

    @field_validator("python")
    @classmethod
    def _program(cls, python: str) -> str:
        if not python or python.startswith("-"):
            raise ValueError(f"{python!r} is no program; write python3, or a path in the image")
        return python

    @field_validator("environment")
    @classmethod
    def _variables(cls, environment: dict[str, str]) -> dict[str, str]:
        for name in environment:
            if not _VARIABLE.fullmatch(name) or name.startswith("TESTBED_RUN"):
                raise ValueError(f"{name!r} is no name of a variable that may be set")
        return environment

    def text(self) -> str:
        """One import in each container."""
        return (
            f"root: coordinator. One container of {self.image} for each worker, with a fork server that imports torch"
        )

    def contained(self, plan: "Plan") -> Mapping[str, Sequence[str]]:
        """Participants, and aggregators whose data plane is a process."""
        preload = plan.experiment.workload.preload
        nodes: dict[str, Sequence[str]] = {node.name: preload for node in plan.nodes if node.role in PARTICIPANTS}
        # The kernel's data plane is loaded by root, beside the containers.
        return nodes | {each.name: () for each in plan.aggregators if each.collective.dataplane == "reference"}

    def lacks(self, plan: "Plan") -> list[str]:  # noqa: ARG002 (whatever runs needs it)
        """The daemon, rootful, every mount, and the image where it is not to be fetched."""
        from testbed.errors import EnvironmentLacksError

        missing = [
            f"runtime.mounts: there is no {path} on this machine" for path in self.mounts if not Path(path).exists()
        ]
        try:
            docker = self._docker()
            facts = docker.facts()
            if facts.has("rootless"):
                missing.append(
                    f"runtime: the Docker daemon at {docker.endpoint} is rootless: its containers live in a user "
                    "namespace that the emulated links cannot be moved into; run with a rootful daemon "
                    "(DOCKER_HOST=unix:///var/run/docker.sock), or runtime: namespace"
                )
            if self.pull == "never" and docker.image_id(self.image) is None:
                missing.append(
                    f"runtime.image: there is no image {self.image} here: "
                    f"{'make image' if self.image == DEFAULT_IMAGE else 'build it, or runtime.pull: missing'}"
                )
        except EnvironmentLacksError as error:
            missing.append(f"runtime: {error}; or runtime: namespace")
        return missing

    def inherited(self) -> Mapping[str, str]:
        """None of the laboratory's."""
        return self.environment

    def _mounts(self, plan: "Plan") -> tuple[str, ...]:
        """A command of the user's finds its files where it was typed."""
        here = str(Path.cwd())
        wanted = isinstance(plan.experiment.workload, Command) and here != "/"
        return tuple(dict.fromkeys((*self.mounts, *([here] if wanted else []))))

    def start(self, plan: "Plan", state: "RunState", *, log_directory: Path) -> "RunningRuntime":
        """Fetch the image where that is asked for, and start every container; each imports what the workload needs."""
        from testbed.hosts.container import ContainerRuntime, ContainerSpec
        from testbed.system.native.libraries import build_libraries

        if self.mounts:  # sources of this package among them are read-only there
            build_libraries()
        spec = ContainerSpec(
            image=self.image,
            python=self.python,
            user=self.user,
            mounts=self._mounts(plan),
            environment=self.environment,
            names=plan.host_names(),
        )
        docker = self._docker()
        if self.pull == "always" or (self.pull == "missing" and docker.image_id(self.image) is None):
            _log.info("fetching the image %s", self.image)
            docker.pull(self.image)
        return ContainerRuntime(docker, spec, self.contained(plan), state, log_directory=log_directory)

    @staticmethod
    def _docker() -> "Docker":
        from testbed.hosts.docker_cli import docker_here

        return docker_here()

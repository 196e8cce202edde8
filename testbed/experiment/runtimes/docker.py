"""Workers, parameter servers and aggregators that are processes run in Docker containers: an image of the user's, not
root, limited by Docker."""

import re
from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field, field_validator

from testbed.experiment.runtimes.base import RUNTIMES, Runtime

DEFAULT_IMAGE: Final = "ina-testbed-worker"
_IMAGE: Final = re.compile(r"[a-z0-9][a-zA-Z0-9._/:@-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@RUNTIMES.register
class DockerContainers(Runtime):
    """Docker containers without a network but the emulated one, without capabilities, not root."""

    driver: ClassVar[str] = "testbed.hosts.container:ContainerDriver"

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
        """What the runtime starts; every container imports torch for itself."""
        return (
            f"root: coordinator. One container of {self.image} for each worker, with a fork server that imports torch"
        )

    def inherited(self) -> Mapping[str, str]:
        """The spec's environment variables, none of the controller's."""
        return self.environment

"""Where results go: `tensorboard:DIR` or `mlflow:URI`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from testbed.errors import MissingRequirementError, SpecError

if TYPE_CHECKING:
    from testbed.tracking.numbers import Tracked


class Tracker(NamedTuple):
    """A program that shows experiments."""

    package: str
    """The import package that its files are written with; another than ours is imported only when it is wanted."""
    write: str
    """`module:function` of (run, place): writes one run; False where it is there already. Raises
    MissingRequirementError when it cannot."""
    place: str
    """What follows the name."""


TRACKERS: Final[Mapping[str, Tracker]] = {
    "tensorboard": Tracker("tensorboard", "testbed.tracking.tensorboard:write", "DIR"),
    "mlflow": Tracker("mlflow", "testbed.tracking.mlflow:write", "URI"),
}
FORMS: Final = " or ".join(f"{name}:{tracker.place}" for name, tracker in TRACKERS.items())


@dataclass(frozen=True, slots=True)
class Target:
    """One place to write to."""

    tracker: str
    place: str

    def __str__(self) -> str:
        return f"{self.tracker}:{self.place}"


def parse_targets(texts: Iterable[str]) -> list[Target]:
    """Raises SpecError for what is no target, MissingRequirementError where its library is missing: both before a run
    whose results would then have nowhere to go."""
    return [_parse(text) for text in texts]


def _parse(text: str) -> Target:
    name, _, place = text.partition(":")
    if name not in TRACKERS or not place:
        raise SpecError(f"--track {text}: write {FORMS}")
    if find_spec(TRACKERS[name].package) is None:
        raise MissingRequirementError(f"--track {text}: {name} is missing: pip install 'ina-testbed[tracking]'")
    return Target(name, place)


def track(records: Sequence[Path], targets: Sequence[Target], *, say: Callable[[str], None]) -> None:
    """Write runs to each target; `say` hears what became of each. Raises SpecError for what is no record, and
    MissingRequirementError, which names how to go on, for a target that refuses."""
    if not targets:
        return
    from testbed.record.reader import load
    from testbed.tracking.numbers import tracked

    for path in records:
        run = tracked(load(path))
        for target in targets:
            module, _, function = TRACKERS[target.tracker].write.partition(":")
            write: Callable[[Tracked, str], bool] = getattr(import_module(module), function)
            try:
                new = write(run, target.place)
            except MissingRequirementError as error:
                raise MissingRequirementError(
                    f"{error}\nthe record is whole; once that is put right: testbed results track {path} --to {target}"
                ) from error
            say(f"{run.run_name}: {'written to' if new else 'is already in'} {target}")

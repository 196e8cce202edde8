"""Papers whose claims can be run: a folder with `paper.yaml` (what it is, what of it is known) and specs with claims.

title: ...
authors: ...
venue: ...
url: https://arxiv.org/abs/...
basis: abstract and the authors' code; the formulas are the standard model's
parts: [architectures.yaml, overlap.yaml]
out_of_reach:
  - {name: ..., feature: 4d, reason: ...}
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from testbed.errors import SpecError
from testbed.experiment.claims import PaperSays
from testbed.experiment.documents import read_document
from testbed.experiment.shipped import shipped_folder

FILE: Final = "paper.yaml"


class _NotRun(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    feature: str = ""
    paper: PaperSays | None = None


class OutOfReach(_NotRun):
    """A claim that cannot be tried here, and why."""

    reason: str


class Elsewhere(_NotRun):
    """A claim that another command checks, since it needs no emulation."""

    command: str


class Paper(BaseModel):
    """A paper, and the specs that carry its claims."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    title: str
    authors: str
    venue: str
    url: str
    basis: str
    """What of the paper was at hand: nothing else may be quoted as its own words."""
    parts: tuple[str, ...] = Field(min_length=1)
    """Files of the folder, in the order in which they run."""
    out_of_reach: tuple[OutOfReach, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()

    @property
    def name(self) -> str:
        """The name of the paper's folder, of `.`, too."""
        return self.folder.resolve().name

    @property
    def specs(self) -> Sequence[Path]:
        """Paths of the parts."""
        return [self.folder / part for part in self.parts]


def shipped_papers() -> list[Paper]:
    """All of them, by name. Raises SpecError where one is not as it should be."""
    folder = shipped_folder()
    return [] if folder is None else [load_paper(path.parent) for path in sorted(folder.glob(f"papers/*/{FILE}"))]


def load_paper(folder: Path) -> Paper:
    """Raises SpecError that names the file and the field."""
    path = folder / FILE
    try:
        data = read_document(path)
        paper = Paper.model_validate({**data, "folder": folder} if isinstance(data, dict) else data)
    except ValidationError as error:
        lines = [f"{path}: {'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
        raise SpecError("\n".join(lines)) from None
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
    missing = [part for part in paper.parts if not (folder / part).is_file()]
    if missing:
        raise SpecError(f"{path}: parts: no such file: {', '.join(missing)}")
    return paper

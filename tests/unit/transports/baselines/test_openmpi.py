import importlib.metadata

import pytest
from pydantic import ValidationError

from transports.baselines.gloo import Gloo
from transports.baselines.openmpi import OpenMpi
from transports.errors import UnsupportedError


def test_the_bytes_are_known_of_an_algorithm_that_was_chosen() -> None:
    assert OpenMpi().schedule is None
    kinds = {"ring": "ring", "segmented_ring": "ring", "rabenseifner": "halving_doubling"}
    for algorithm, kind in kinds.items():
        schedule = OpenMpi.model_validate({"algorithm": algorithm}).schedule
        assert schedule is not None
        assert schedule.kind == kind
    assert Gloo().schedule is not None


def test_the_algorithm_is_given_to_the_library_by_its_number() -> None:
    assert OpenMpi().variables == {}
    assert OpenMpi(algorithm="rabenseifner").variables["OMPI_MCA_coll_tuned_allreduce_algorithm"] == "6"


def test_an_algorithm_that_it_misses_is_refused() -> None:
    with pytest.raises(ValidationError, match="'own', 'recursive_doubling', 'ring'"):
        OpenMpi.model_validate({"algorithm": "tree"})


def test_a_machine_without_it_is_given_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(UnsupportedError, match=r"mpi4py is missing: pip install 'ina-testbed\[mpi\]'"):
        OpenMpi().require()

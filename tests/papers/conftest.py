"""Checks of the models against public logs, which the project does not ship: `make check-papers DATA=folder`."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    folder = os.environ.get("PAPERS_DATA", "")
    assert folder, (
        "name the folder with the public logs: make check-papers DATA=folder (docs/papers.md says what is in it)"
    )
    path = Path(folder).resolve()
    assert (path / "training_bottleneck").is_dir(), f"{path} has no folder training_bottleneck"
    assert (path / "b_caffe").is_dir(), f"{path} has no folder b_caffe"
    return path

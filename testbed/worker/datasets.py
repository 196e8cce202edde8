"""The data sets that training can name, and how their images are dealt out to workers."""

import importlib.util
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Dataset:
    """Labelled images in memory."""

    images: npt.NDArray[np.float32]
    """(num_images, 1, side, side), zero mean and unit variance over the whole set."""
    labels: npt.NDArray[np.int64]
    """(num_images,)"""


def digits() -> Dataset:
    """1797 handwritten digits of 8 x 8 pixels (UCI "Optical Recognition of Handwritten Digits"), from the file that
    scikit-learn ships.

    Without importing it, which takes as long as half of torch. Raises ModuleNotFoundError where it is not installed.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("no module named 'sklearn': the data set digits comes with scikit-learn; install it")
    table = np.loadtxt(Path(found.origin).with_name("datasets") / "data" / "digits.csv.gz", delimiter=",")
    images = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32)
    return Dataset((images - images.mean()) / images.std(), table[:, -1].astype(np.int64))


DATASETS: Final = {"digits": digits}


def batches(
    *, num_images: int, batch_size: int, rank: int, num_workers: int, seed: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Endlessly, the worker's image numbers for each iteration, each of shape (batch_size,).

    Every epoch is a new permutation, and epochs follow each other without a gap. Of each iteration's
    `num_workers * batch_size` consecutive images, worker r takes the r-th part: together the workers see
    exactly what one process with the whole batch would see.
    """
    global_size = batch_size * num_workers
    order = np.empty(0, dtype=np.int64)
    for epoch in itertools.count():
        order = np.concatenate([order, np.random.default_rng([seed, epoch]).permutation(num_images)])
        while len(order) >= global_size:
            yield order[rank * batch_size : (rank + 1) * batch_size]
            order = order[global_size:]

"""What workers would do without each other: the T_1 of a scaling factor (docs/definitions.md). Pure."""

import numpy as np
import numpy.typing as npt


def alone_s(compute_s: float, factors: npt.ArrayLike) -> float:
    """Harmonic mean over workers of their mean iteration alone: n of them make n / alone_s iterations a second.

    `factors` are those by which each worker's computing of `compute_s` is lengthened, a row for each iteration.
    """
    means = np.mean(np.asarray(factors, dtype=np.float64), axis=0)
    return compute_s * len(means) / float(np.sum(1 / means))

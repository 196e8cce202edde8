"""What workers would do without each other: the T_1 of a scaling factor (docs/definitions.md). Pure."""

import numpy as np
import numpy.typing as npt


def alone_s(compute_s: float, factors: npt.ArrayLike, *, input_s: float = 0.0) -> float:
    """Harmonic mean over workers of their mean iteration alone: n of them make n / alone_s iterations a second.

    `factors` are those by which each worker's computing of `compute_s` is lengthened, a row for each iteration; its
    input is read and copied in `input_s` while the batch before is computed with, and what takes longer decides.
    """
    if compute_s == input_s == 0:
        return 0.0
    means_s = np.mean(np.maximum(compute_s * np.asarray(factors, dtype=np.float64), input_s), axis=0)
    return len(means_s) / float(np.sum(1 / means_s))

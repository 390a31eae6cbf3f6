"""What mechanisms are, in as many digits as mpmath works with: what their numbers in doubles are held against."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt

import dualmech as dm
from dualmech.workloads.streams import RangeWorkload

Exact = Any  # a matrix of mpmath, which is untyped


def exact(matrix: npt.ArrayLike) -> Exact:
    return mpmath.matrix(np.asarray(matrix, dtype=float).tolist())


def sums_of(workload: Any) -> Exact:
    """Return the sums that noise on a stream is for: of all ranges those of the same Gram matrix."""
    count, found = workload.shape[1], mpmath.zeros(workload.shape[1])
    for i in range(count):
        for j in range(i + 1):
            ranges = isinstance(workload, RangeWorkload)
            found[i, j] = mpmath.mpf(j + 1) / (i + 1) if ranges else mpmath.mpf(workload.decay) ** (i - j)
    return found


def stream_root(mechanism: dm.StreamMechanism) -> Exact:
    """Return F with ``F F' = level · P # Q⁻¹``."""
    point = mechanism.point
    left, right = (
        mpmath.diag([mpmath.sqrt(mpmath.mpf(each)) for each in weights.tolist()])
        for weights in (point.query_weights, point.neighbour_weights)
    )
    both = left * sums_of(mechanism.workload) * right
    values, vectors = mpmath.eigsy(both.T * both)
    fourth = mpmath.diag([mpmath.root(1 / each, 4) for each in values])
    return right * vectors * fourth * mpmath.sqrt(mpmath.mpf(point.level))

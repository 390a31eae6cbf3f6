"""What several row spaces have in common, and the angles at which they meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dualmech import linalg
from dualmech.validate import Array

MEETING = linalg.SPAN_TOLERANCE
"""Sine of the largest angle, 1e-9, up to which directions of several spaces count as one and the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Intersection:
    """The intersection of several row spaces."""

    rows: Array  # (r, d) orthonormal rows that span it; none where the spaces meet in 0 alone
    # (k,) in increasing order, k the least of the dimensions, in radians. For two spaces they are the principal
    # angles; for more, each is the root mean square of the angles' sines between a direction of the smallest space
    # and the others. The first r are 0, up to 1e-9
    angles: Array


def intersection(spaces: Sequence[Array]) -> Intersection:
    """Intersect the row spaces of matrices whose rows are independent.

    A direction t of the smallest space V belongs to all of them where ``Σ_i ‖t - t P_i‖²`` is 0, P_i being the
    orthogonal projectors of the others. The singular values of the residuals, stacked, are the sines of the
    angles; so a small angle is seen as such to the last digit, where its cosine would be 1 from 1e-8 downwards.

    Examples
    --------
    >>> from dualmech.mechanisms.intersections import intersection
    >>> found = intersection([np.array([[1.0, 0, 0], [0, 1, 0]]), np.array([[1.0, 0, 0], [0, 1, 1]])])
    >>> found.rows, found.angles.round(4)
    (array([[1., 0., 0.]]), array([0.    , 0.7854]))
    """
    cells = spaces[0].shape[1]
    if not all(len(space) for space in spaces):
        return Intersection(np.zeros((0, cells)), np.zeros(0))
    bases = sorted((linalg.row_space(space) for space in spaces), key=len)
    smallest, others = bases[0], bases[1:]
    residuals = [smallest - (smallest @ other.T) @ other for other in others]
    # Projecting twice leaves nothing of the first projection's own rounding.
    residuals = [
        residual - (residual @ other.T) @ other for residual, other in zip(residuals, others, strict=True)
    ]
    _, sines, directions = linalg.svd(np.hstack(residuals).T)
    sines = np.minimum(sines / np.sqrt(len(others)), 1.0)[::-1]
    meeting = directions[::-1][: int(np.sum(sines <= MEETING))]
    rows = meeting @ smallest
    leading = rows[np.arange(len(rows)), np.argmax(np.abs(rows), axis=1)] if len(rows) else np.zeros(0)
    return Intersection(np.asarray(rows * np.sign(leading)[:, None]), np.arcsin(sines))

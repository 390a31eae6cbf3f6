"""What a mechanism still has to reveal once part of it is known, and how to put both parts together again."""

from __future__ import annotations

from typing import Any

import numpy as np

from dualmech import linalg
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.answerability import TOLERANCE, coordinates, without_dust
from dualmech.mechanisms.frames import frame_of
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.recombination import Decomposition
from dualmech.validate import Array

NOTHING_LEFT = 1e-9  # share of a direction's information, left over, up to which it is not asked for again


def decomposition(mechanism: Any, common: Any, tol: float = TOLERANCE) -> Any:
    """Split a mechanism into a part that it can answer and the residual that is left of it.

    In the standard form S of the mechanism, with unit noise, the common part's is T S, and what is left has the cost
    ``S' (I - T'T) S``. With ``I - T'T = V E V'`` the residual asks ``√E V' S``, with unit noise, and
    ``T' (T S x + z) + V √E (√E V' S x + z')`` is S x with unit noise again. The singular values of T give E without
    forming a difference of cost matrices. Mechanisms of tables are split block by block.
    Raises `InvalidInputError` or `InputTypeError` for a common part that is not answerable from the mechanism, or
    on other cells or neighbours; exact answers.
    A direction of which less than 1e-9 is left is not asked again: its variance is 1e-9, relative, above the
    target's. Algorithms 3 and 4 and theorem 5.5 of CMN.
    Returns `Decomposition`; of mechanisms of tables `TableDecomposition`.

    Parameters
    ----------
    mechanism : LinearGaussianMechanism or BlockMechanism
        What is wanted in the end.
    common : mechanism of the same kind
        What is known first; it must be answerable from `mechanism`.
    tol : float
        As for `LinearGaussianMechanism.is_answerable_from`.

    Examples
    --------
    >>> import dualmech as dm
    >>> cells = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
    >>> parts = dm.decomposition(cells, dm.LinearGaussianMechanism([[1, 1]], [[2]]))
    >>> abs(parts.residual.query_matrix.round(4)), parts.from_common.round(4).ravel()
    (array([[0.7071, 0.7071]]), array([0.5, 0.5]))
    """
    frame = frame_of((mechanism, common), ("mechanism", "common"))
    verdict = common.is_answerable_from(mechanism, tol)
    if not verdict:
        place = "" if verdict.attributes is None else f", on {' x '.join(verdict.attributes) or 'the total'}"
        raise InvalidInputError(
            f"common must be answerable from mechanism, but exceeds its cost by {verdict.excess:.3g}, relative{place}"
        )
    pairs = zip(frame.parts(mechanism), frame.parts(common, "common"), strict=True)
    return frame.decomposed([_split(*each) for each in pairs])


def _split(mechanism: LinearGaussianMechanism, common: LinearGaussianMechanism) -> Decomposition:
    form, known = mechanism.standard_form, common.standard_form
    shares = coordinates(known.queries, form.queries)
    directions, left = _remaining_directions(shares)
    rows = without_dust(np.sqrt(left)[:, None] * directions @ form.queries)
    residual = LinearGaussianMechanism(rows, np.eye(len(left)), mechanism.neighbours)
    return Decomposition(
        mechanism,
        common,
        residual,
        form.lift @ shares.T @ known.estimate,
        form.lift @ (directions.T * np.sqrt(left)),
        _leftover(mechanism),
    )


def residual(mechanism: Any, common: Any, tol: float = TOLERANCE) -> Any:
    """Return what is left of a mechanism once a part of it is known; see `decomposition`.

    Examples
    --------
    >>> import dualmech as dm
    >>> noisy, better = (dm.LinearGaussianMechanism([[1, 1]], [[variance]]) for variance in (2, 1))
    >>> dm.residual(better, noisy).cost_matrix.round(9)      # 1/1 - 1/2
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    return decomposition(mechanism, common, tol).residual


def _remaining_directions(shares: Array) -> tuple[Array, Array]:
    """Return the eigenvectors, as rows, and eigenvalues of ``I - T'T`` that are not nothing."""
    size = shares.shape[1]
    if not len(shares):
        return np.eye(size), np.ones(size)
    _, sizes, directions = linalg.svd(shares, full_matrices=True)
    left = np.ones(size)
    left[: len(sizes)] = (1 - sizes) * (1 + sizes)
    kept = left > NOTHING_LEFT
    return directions[kept], left[kept]


def _leftover(mechanism: LinearGaussianMechanism) -> Array:
    """Return ``Σ - L L'``, each row in its own unit cut at rounding; exactly 0 where the rows are independent."""
    covariance = mechanism.covariance()
    if mechanism.independent:
        return np.zeros_like(covariance)
    units, lift = np.sqrt(np.diagonal(covariance)), mechanism.standard_form.lift
    values, vectors = np.linalg.eigh((covariance - lift @ lift.T) / units / units[:, None])
    scaled = vectors * np.where(values > NOTHING_LEFT, values, 0.0) @ vectors.T * units * units[:, None]
    return np.asarray((scaled + scaled.T) / 2)

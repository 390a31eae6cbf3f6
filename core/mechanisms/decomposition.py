"""What a mechanism still has to reveal once part of it is known, and how to put both parts together again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.answerability import TOLERANCE, check_comparable, coordinates
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.validate import Array

NOTHING_LEFT = 1e-9  # share of a direction's information, left over, up to which it is not asked for again


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    """A mechanism in two parts, and how their answers make up its own (CMN, algorithm 4 and theorem 5.5).

    Attributes
    ----------
    target, common, residual : LinearGaussianMechanism
        The mechanism; the part of it that is released first; what is left of it (algorithm 3). Run independently,
        the two parts are equivalent to the target: their cost matrices add up to its own.
    from_common : (m, k) array
        A_*, on the answers of the common part.
    from_residual : (m, k') array
        A', on the answers of the residual.
    leftover : (m, m) array
        Covariance of the noise that is missing from the sum of both: 0 where the target's rows are independent. It is
        how far dependent rows contradict each other, and does not depend on the data.
    """

    target: LinearGaussianMechanism
    common: LinearGaussianMechanism
    residual: LinearGaussianMechanism
    from_common: Array
    from_residual: Array
    leftover: Array

    @property
    def consistent(self) -> LinearGaussianMechanism:
        """The distribution of `combine` without a generator: the target less its contradictions."""
        return LinearGaussianMechanism(
            self.target.query_matrix, self.target.covariance() - self.leftover, self.target.neighbours
        )

    def combine(
        self,
        common_answers: npt.ArrayLike,
        residual_answers: npt.ArrayLike,
        rng: np.random.Generator | int | None = None,
    ) -> Array:
        """Return the target's answers from those of both parts, which must have noise of their own.

        Simulated with one seed each, the parts would share theirs: give both the same generator instead, or two seeds.
        Raises `InvalidInputError` or `InputTypeError` for answers of other shapes, NaN or infinity.
        Returns an array, (m,) or (n, m).

        Parameters
        ----------
        common_answers, residual_answers : (k,) and (k',), or (n, k) and (n, k') arrays
            Of one run, or of n.
        rng : numpy.random.Generator or int, optional
            Where the leftover noise comes from, with which the answers have the target's own distribution. Without
            it they are consistent with one another, and worth as much.
        """
        first = _answers("common_answers", common_answers, self.from_common.shape[1])
        second = _answers("residual_answers", residual_answers, self.from_residual.shape[1])
        if first.shape[:-1] != second.shape[:-1]:
            raise InvalidInputError(
                f"residual_answers must be of as many runs as common_answers, got {second.shape} and {first.shape}"
            )
        combined = first @ self.from_common.T + second @ self.from_residual.T
        if rng is None or not np.any(self.leftover):
            return np.asarray(combined)
        values, vectors = np.linalg.eigh(self.leftover)
        draws = validate.generator(rng=rng).standard_normal(combined.shape)
        return np.asarray(combined + draws * np.sqrt(np.maximum(values, 0.0)) @ vectors.T)


def decomposition(
    mechanism: LinearGaussianMechanism, common: LinearGaussianMechanism, tol: float = TOLERANCE
) -> Decomposition:
    """Split a mechanism into a part that it can answer and the residual that is left of it.

    In the standard form S of the mechanism, with unit noise, the common part's is T S, and what is left has the cost
    ``S' (I - T'T) S``. With ``I - T'T = V E V'`` the residual asks ``√E V' S``, with unit noise, and
    ``T' (T S x + z) + V √E (√E V' S x + z')`` is S x with unit noise again. The singular values of T give E without
    forming a difference of cost matrices.
    Raises `InvalidInputError` or `InputTypeError` for a common part that is not answerable from the mechanism, or
    on other cells or neighbours; exact answers.
    A direction of which less than 1e-9 is left is not asked again: its variance is 1e-9, relative, above the
    target's. Algorithms 3 and 4 and theorem 5.5 of CMN.

    Parameters
    ----------
    mechanism : LinearGaussianMechanism
        What is wanted in the end.
    common : LinearGaussianMechanism
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
    check_comparable((mechanism, common), ("mechanism", "common"))
    verdict = common.is_answerable_from(mechanism, tol)
    if not verdict:
        raise InvalidInputError(
            f"common must be answerable from mechanism, but exceeds its cost by {verdict.excess:.3g}, relative"
        )
    form, known = mechanism.standard_form, common.standard_form
    shares = coordinates(known.queries, form.queries)
    directions, left = _remaining_directions(shares)
    residual = LinearGaussianMechanism(
        np.sqrt(left)[:, None] * directions @ form.queries, np.eye(len(left)), mechanism.neighbours
    )
    return Decomposition(
        mechanism,
        common,
        residual,
        form.lift @ shares.T @ known.estimate,
        form.lift @ (directions.T * np.sqrt(left)),
        _leftover(mechanism),
    )


def residual(
    mechanism: LinearGaussianMechanism, common: LinearGaussianMechanism, tol: float = TOLERANCE
) -> LinearGaussianMechanism:
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


def _answers(name: str, answers: npt.ArrayLike, size: int) -> Array:
    if size == 0:
        return np.zeros((*np.shape(answers)[:-1], 0))
    given = validate.finite(**{name: answers})
    if given.ndim not in (1, 2) or given.shape[-1] != size:
        raise InvalidInputError(f"{name} must have {size} entries in each row, got shape {given.shape}")
    return given

"""Verified privacy costs and variances under Gaussian noise, and verified pseudoinverses."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg
from dualmech.errors import InvalidInputError
from dualmech.geometry.moves import moves_between, product
from dualmech.validate import Array, Matrix
from dualmech.verified import (
    MAX_EXACT_PRODUCTS,
    UNIT,
    UPWARDS,
    Enclosure,
    gram_defect,
    inverse_near_identity,
    proves_span,
    spectral_norm,
    sum_rounding,
)

ORTHONORMAL_TOL = 1e-12
"""Maximum entry of ``|Q Q' - I|``, for rows Q of unit norm, at which Q' is taken as the pseudoinverse."""


@dataclass(frozen=True, slots=True, eq=False)
class PseudoInverse:
    """``Q⁺`` (d, k) in doubles, with verified error bounds of its columns.

    A triangle T from a pivoted QR factorisation makes the rows or columns of Q nearly orthonormal; it need not be
    accurate. ``K = T Q`` and ``K K'`` are enclosed in double-double arithmetic. If ``K K'`` is close to the identity,
    ``Q⁺ = K' (K K')⁻¹ T`` for independent rows; for independent columns ``Q⁺ = T (O'O)⁻¹ O'`` with ``O = Q T``. If
    neither are independent, ``Q = H K`` with rows K that are proven to span all rows, and ``Q⁺ = K⁺ H⁺``.
    """

    design: Array  # (k, d) Q
    matrix: Array  # (d, k) Q⁺, with a zero column for each zero row of Q
    rounding: Array  # (k,) upper bounds on the norms of the columns' errors; infinite if unknown
    basis: Array  # (r, d) orthonormal rows that span the rows of Q
    independent: bool  # whether the non-zero rows of Q are linearly independent
    enclosure: Enclosure | None  # of Q⁺, if it is computed already

    @classmethod
    def of(cls, design: Array) -> PseudoInverse:
        """Return the transpose of orthogonal rows, scaled; otherwise enclose the pseudoinverse."""
        norms = np.linalg.norm(design, axis=1)
        nonzero = np.flatnonzero(norms)
        shape = design.shape[1], len(design)
        matrix, errors = np.zeros(shape), np.zeros(len(norms))
        rows = design[nonzero] / norms[nonzero, None]
        if len(rows) <= shape[0]:
            defect, entry_error = gram_defect(rows)
            if np.abs(defect).max() <= ORTHONORMAL_TOL:
                defect_norms = np.linalg.norm(defect, axis=0) + np.sqrt(len(rows)) * entry_error
                # With ``K K' = I + E``, ``K⁺ - K' = -K'E (I + E)⁻¹``; K and its scale are rounded too.
                if float(np.linalg.norm(defect_norms)) + 3 * UNIT * len(rows) < 1e-3:
                    matrix[:, nonzero] = rows.T / norms[nonzero]
                    errors[nonzero] = 1.01 * (defect_norms + (3 * np.sqrt(len(rows)) + 4) * UNIT) / norms[nonzero]
                    return cls(design, matrix, errors, rows, True, None)
        basis = linalg.row_basis(design)
        enclosure = _enclosed(design, nonzero, len(basis))
        if enclosure is None:
            matrix[:, nonzero], errors[nonzero] = np.linalg.pinv(design[nonzero]), np.inf
        else:
            matrix = enclosure.high
            errors = np.linalg.norm(np.abs(enclosure.low) + enclosure.radius, axis=0) * UPWARDS
        return cls(design, matrix, errors, basis, len(basis) == len(nonzero), enclosure)

    def enclosed(self) -> Enclosure | None:
        """Return an enclosure of the pseudoinverse; None if none is proven."""
        if self.enclosure is not None or not np.all(np.isfinite(self.rounding)):
            return self.enclosure
        return _enclosed(self.design, np.flatnonzero(np.any(self.design, axis=1)), len(self.basis))


def _enclosed(design: Array, nonzero: npt.NDArray[np.intp], rank: int) -> Enclosure | None:
    """Return an enclosure of the pseudoinverse, with zero columns for zero rows; None if none is proven."""
    if linalg.is_identity(design):
        return Enclosure.of(design)
    rows, cells = design[nonzero], design.shape[1]
    # Independent rows are scaled by powers of 2, since ``(D Q)⁺ = Q⁺ D⁻¹`` for them.
    units = np.ldexp(1.0, -np.frexp(np.abs(rows).max(axis=1))[1])
    with np.errstate(all="ignore"):
        if rank == len(rows):
            enclosure = _of_independent(rows * units[:, None])
            enclosure = None if enclosure is None else enclosure.columns_scaled(units)
        elif rank == cells:
            enclosure = _of_spanning(Enclosure.of(rows))
        else:
            enclosure = _of_dependent(rows, units, rank)
    if enclosure is None or not np.all(np.isfinite(enclosure.radius)):
        return None
    parts = []
    for array in (enclosure.high, enclosure.low, enclosure.radius):
        columns = np.zeros((cells, len(design)))
        columns[:, nonzero] = array
        parts.append(columns)
    return Enclosure(*parts)


def _of_independent(rows: Array) -> Enclosure | None:
    """Return ``Q⁺ = K' (K K')⁻¹ T`` for independent rows."""
    root, order = _row_root(rows, len(rows))
    root[:, order] = root.copy()
    orthonormal = Enclosure.of(root) @ Enclosure.of(rows)
    middle = inverse_near_identity(orthonormal @ orthonormal.T)
    return None if middle is None else orthonormal.T @ (middle @ Enclosure.of(root))


def _of_spanning(rows: Enclosure) -> Enclosure | None:
    """Return ``Q⁺ = T (O'O)⁻¹ O'`` for independent columns."""
    root = Enclosure.of(_column_root(rows.high))
    orthonormal = rows @ root
    middle = inverse_near_identity(orthonormal.T @ orthonormal)
    return None if middle is None else (root @ middle) @ orthonormal.T


def _of_dependent(rows: Array, units: Array, rank: int) -> Enclosure | None:
    """Return ``Q⁺ = K⁺ H⁺``, ``Q = H K``, with `rank` orthonormalised rows K that span all rows."""
    scaled = rows * units[:, None]
    root, order = _row_root(scaled, rank)
    spanning = order[:rank]
    orthonormal = Enclosure.of(root) @ Enclosure.of(scaled[spanning])
    gram = orthonormal @ orthonormal.T
    middle = inverse_near_identity(gram)
    if middle is None:
        return None
    half = orthonormal.T @ middle
    tall = Enclosure.of(rows) @ half
    residual = (Enclosure.of(rows) - tall @ orthonormal).T.columns_scaled(units).T
    defect = (gram - Enclosure.of(np.eye(rank))).norm()
    if not proves_span(scaled, spanning, np.diagonal(root), residual, defect):
        return None
    inverse = _of_spanning(tall)
    return None if inverse is None else half @ inverse


def _row_root(rows: Array, rank: int) -> tuple[Array, npt.NDArray[np.intp]]:
    """Return a triangle T that orthonormalises `rank` rows approximately, and an order of rows, these first."""
    triangle, order = scipy.linalg.qr(rows.T, mode="r", pivoting=True, check_finite=False)
    return _inverse(triangle[:rank, :rank]).T.copy(), order


def _column_root(rows: Array) -> Array:
    """Return T such that ``Q T`` has nearly orthonormal columns, for rows of any different norms."""
    long_first = np.argsort(-np.linalg.norm(rows, axis=1), kind="stable")
    triangle, order = scipy.linalg.qr(rows[long_first], mode="r", pivoting=True, check_finite=False)
    root = np.zeros((rows.shape[1], rows.shape[1]))
    root[order] = _inverse(triangle[: rows.shape[1]])
    return root


def _inverse(triangle: Array) -> Array:
    """Return the inverse of a triangle, NaN if it is singular."""
    if not np.all(np.diagonal(triangle)):
        return np.full(triangle.shape, np.nan)
    return np.asarray(scipy.linalg.solve_triangular(triangle, np.eye(len(triangle)), check_finite=False))


VARIANCE_TOL = 1e-9
"""Maximum relative error of proven variances."""

MAX_VARIANCE_ERROR = 1e-6
"""Maximum relative error of a variance that is returned without rounding up."""

SMALL_VARIANCE = 1e-10
"""Relative to the largest variance: an error up to this is covered by rounding the variance up."""

ZERO_VARIANCE = 1e-20
"""Relative to the largest variance: a smaller variance counts as 0, of an exact answer."""


def require_told(
    variances: Array, errors: Array, noise: float = 0.0, unmoved: npt.NDArray[np.bool_] | bool = False
) -> Array:
    """Return variances with acceptable absolute errors, some of them rounded up; refuse the others.

    A relative error of at most `MAX_VARIANCE_ERROR` is accepted. Otherwise, if the largest variance of the noise is
    given, a variance is rounded up by at most 1 % and `SMALL_VARIANCE` of the largest variance. The variances of
    `unmoved` queries, which are equal on all neighbours, are rounded up by any amount: their noise only makes the
    covariance definite.
    """
    accurate = errors <= MAX_VARIANCE_ERROR * variances
    small = ~accurate & (noise > 0) & (errors <= 0.01 * variances)
    small &= errors <= SMALL_VARIANCE * variances.max(initial=noise)
    accepted = accurate | small | (errors == 0) | unmoved
    if not np.all(accepted):
        worst = int(np.argmin(accepted))
        raise InvalidInputError(
            f"workload has a variance, of query {worst}, with a relative rounding error above {MAX_VARIANCE_ERROR:g}: "
            "the noise on the rows that it combines is much larger"
        )
    return np.where(small | (unmoved & ~accurate), variances + errors, variances)


def profile(noise: Array, queries: Array, neighbours: Matrix | None) -> Array:
    """Return upper bounds on the privacy costs (s,); inf if an exact answer cannot be ruled out within rounding."""
    if not len(noise):
        return np.zeros(queries.shape[1] if neighbours is None else neighbours.shape[1])
    singular = linalg.is_singular(noise)
    regular_costs = judged_costs(noise, queries, neighbours) if singular else 0.0
    return np.where(np.isinf(regular_costs), np.inf, proven_costs(noise, queries, neighbours))


def judged_costs(noise: Array, queries: Array, neighbours: Matrix | None) -> Array:
    """Return upper bounds on the costs under the regularised covariance, as the judge computes them (s,)."""
    moves, rounding = moves_between(queries, neighbours)
    forms = linalg.inverse_forms(noise, moves, rounding)
    if forms is None:
        raise InvalidInputError(
            f"covariance must be positive semidefinite and not zero, "
            f"its smallest eigenvalue is {np.linalg.eigvalsh(noise)[0]:.3g}"
        )
    return forms[1] + forms[2]


def proven_costs(noise: Array, queries: Array, neighbours: Matrix | None) -> Array:
    """Return upper bounds on ``(B u)' Σ⁻¹ (B u)`` for all pairs of neighbours u, shape (s,).

    With a triangle T that makes ``C = T' Σ T`` nearly the identity, proven in double-double arithmetic, the cost is
    ``z' C⁻¹ z``, ``z = T' B u``. If no T is found, small problems are solved in fractions, and in larger ones every
    non-zero sensitivity vector costs inf.
    """
    moves, rounding = _sensitivities(queries, neighbours)
    noisy = np.diagonal(noise) > 0
    forms = _by_factor(noise[np.ix_(noisy, noisy)], moves[noisy], rounding[noisy])
    if forms is not None:
        silent = np.any((moves[~noisy] != 0) | (rounding[~noisy] > 0), axis=0)
        return np.where(silent, np.inf, _upper_bounds(*forms))
    if len(noise) ** 2 * (len(noise) + moves.shape[1]) > MAX_EXACT_PRODUCTS:
        return np.where(np.any((moves != 0) | (rounding > 0), axis=0), np.inf, 0.0)
    return _in_fractions(noise, queries, neighbours)


def least_costs(noise: Array, queries: Array, neighbours: Matrix | None) -> Array:
    """Return lower bounds on ``(B u)' Σ⁻¹ (B u)`` for all pairs of neighbours u, shape (s,); 0 if unknown."""
    moves, rounding = _sensitivities(queries, neighbours)
    costs = _by_factor(noise, moves, rounding) if np.all(np.diagonal(noise) > 0) else None
    if costs is None:
        return np.zeros(moves.shape[1])
    return np.maximum((costs[0] - costs[1] * UPWARDS) * (1 - 4 * UNIT), 0.0)


def _sensitivities(queries: Array, neighbours: Matrix | None) -> tuple[Array, Array]:
    """Return the sensitivity vectors B U (k, s) and error bounds of their entries."""
    return (queries, np.zeros_like(queries)) if neighbours is None else product(queries, neighbours)


def _upper_bounds(costs: Array, errors: Array) -> Array:
    return np.where(errors > 0, (costs + errors * UPWARDS) * (1 + 4 * UNIT), costs)


def _by_factor(noise: Array, moves: Array, rounding: Array) -> tuple[Array, Array] | None:
    """Return the costs and error bounds if a covariance is proven to be positive definite, else None."""
    if not len(noise):
        return np.zeros(moves.shape[1]), np.zeros(moves.shape[1])
    scaled_noise, units = linalg.in_powers_of_two(noise)
    scaled = Enclosure.of(scaled_noise)
    whitening = linalg.whitened(scaled)
    if whitening is None:
        return None
    root, inverse = whitening
    vectors = Enclosure(moves * units[:, None], np.zeros_like(moves), rounding * units[:, None])
    whitened = Enclosure.of(root.T) @ vectors
    costs = np.einsum("ki,ki->i", whitened.high, inverse.high @ whitened.high)
    squares = np.einsum("ki,ki->i", whitened.high, whitened.high)
    if linalg.is_identity(scaled.high) and not np.any(rounding) and np.all(vectors.high == np.rint(vectors.high)):
        return squares, np.where(squares <= 2**53, 0.0, squares * (UPWARDS - 1))  # sums of squared integers are exact
    vector_errors = np.linalg.norm(np.abs(whitened.low) + whitened.radius, axis=0)
    inverse_norm = inverse.norm()
    errors = vector_errors * (2 * np.sqrt(squares) + vector_errors) * inverse_norm
    inverse_error = float(np.linalg.norm(inverse.low + inverse.radius))
    return costs, errors + (2 * sum_rounding(len(noise)) * inverse_norm + inverse_error) * squares


def _in_fractions(noise: Array, queries: Array, neighbours: Matrix | None) -> Array:
    """Return the costs by elimination in fractions; infinite outside the range, and for an indefinite matrix."""
    differences = np.eye(queries.shape[1]) if neighbours is None else linalg.to_dense(neighbours)
    rows = [[Fraction(entry) for entry in row] for row in queries.tolist()]
    columns = [[Fraction(entry) for entry in column] for column in differences.T.tolist()]
    matrix = [[Fraction(entry) for entry in row] for row in noise.tolist()]
    moves = [
        [sum((a * b for a, b in zip(row, column, strict=True) if b), Fraction(0)) for column in columns] for row in rows
    ]
    costs: list[Fraction | float] = [Fraction(0)] * len(columns)
    for place, row in enumerate(matrix):
        pivot = row[place]
        if pivot < 0 or (pivot == 0 and any(row[place:])):
            return np.where(np.any(np.array(moves) != 0, axis=0), np.inf, 0.0)
        for index, move in enumerate(moves[place]):
            if move:
                costs[index] = costs[index] + move**2 / pivot if pivot else np.inf
        for lower in range(place + 1, len(matrix)):
            if matrix[lower][place]:
                factor = matrix[lower][place] / pivot
                matrix[lower] = [a - factor * b for a, b in zip(matrix[lower], row, strict=True)]
                moves[lower] = [a - factor * b for a, b in zip(moves[lower], moves[place], strict=True)]
    return np.array([np.nextafter(float(cost), np.inf) if cost else 0.0 for cost in costs])


Noisy = tuple[Array, Array]
"""Rows B (k, d), and the covariance Σ (k, k) of their noise."""

EQUIVALENCE_TOL = 1e-7
"""Maximum relative difference of the costs of equivalent mechanisms on different rows."""


def whitening_root(covariance: Array) -> Array | None:
    """Return T with ``T Σ T' = I``; None if Σ is not positive definite."""
    factor = linalg.cholesky(covariance)
    if factor is None:
        return None
    return np.asarray(scipy.linalg.solve_triangular(factor, np.eye(len(factor)), trans="T", check_finite=False))


def entry_condition(root: Array, covariance: Array) -> float:
    """Return an upper bound on ``‖T E T'‖`` for errors ``|E| ≤ |V|``, if ``T V T' = I``."""
    sizes = np.abs(root)
    return spectral_norm(sizes @ np.abs(covariance) @ sizes.T)


def rounding_share(root: Array, covariance: Array) -> float:
    """Return a relative error bound of costs and variances for a computed V (n, n) with ``T V T' = I``."""
    return 16 * (len(covariance) + 2) * linalg.EPS * entry_condition(root, covariance)


def equivalence_error(first: Noisy, second: Noisy) -> float:
    """Return δ with ``|u'C u - u'D u| ≤ δ u'D u`` for all u in the span of the second's independent rows.

    C and D are the cost matrices of the two, on a basis X of the span with ``X'D X`` close to the identity: in doubles
    if their rounding errors are small, else in double-double arithmetic. Infinite if no bound is proven.
    """
    factor = linalg.cholesky(second[1])
    if factor is None:
        return np.inf
    rows = scipy.linalg.solve_triangular(factor, second[0], trans="T", check_finite=False)
    units, orthonormal, triangle = linalg.row_factors(rows)
    basis = units[:, None] * scipy.linalg.solve_triangular(triangle, orthonormal.T, check_finite=False).T
    (form, form_error), (other, other_error) = (_form_in_doubles(*noisy, basis) for noisy in (first, second))
    error = float(np.linalg.norm(form - other)) + form_error + other_error
    if error <= EQUIVALENCE_TOL:
        defect = float(np.linalg.norm(other - np.eye(len(rows)))) + other_error
        if defect < 0.5:
            return error / (1 - defect)
    forms = [_form(*noisy, basis) for noisy in (first, second)]
    if forms[0] is None or forms[1] is None or (inverse := inverse_near_identity(forms[1])) is None:
        return np.inf
    return (forms[0] - forms[1]).norm() * inverse.norm() * UPWARDS


def _form_in_doubles(queries: Array, noise: Array, basis: Array) -> tuple[Array, float]:
    """Return ``X'B' Σ⁻¹ B X`` and a bound on the norm of its error; infinite if Σ has no Cholesky factor."""
    inverse = whitening_root(noise)
    if inverse is None:
        return np.zeros((basis.shape[1],) * 2), np.inf
    answers = inverse @ (queries @ basis)
    norm = spectral_norm(np.abs(answers))
    # Errors of T with ``T Σ T' = I``, and of the products.
    error = entry_condition(inverse, noise) * norm**2
    error += 2 * norm * spectral_norm(np.abs(inverse) @ (np.abs(queries) @ np.abs(basis)))
    return answers.T @ answers, 4 * sum_rounding(len(noise) + len(basis) + 8) * error


def _form(queries: Array, noise: Array, basis: Array) -> Enclosure | None:
    """Return ``X'B' Σ⁻¹ B X``; None if Σ is not proven to be positive definite."""
    scaled, units = linalg.in_powers_of_two(noise)
    whitening = linalg.whitened(Enclosure.of(scaled))
    if whitening is None:
        return None
    root, inverse = whitening
    answers = Enclosure.of(root.T) @ (Enclosure.of(queries * units[:, None]) @ Enclosure.of(basis))
    return answers.T @ (inverse @ answers)


def proven_variances(noise: Array, queries: Array, independent: bool, rows: Array) -> Array | None:
    """Return verified generalised-least-squares variances of the answers (m,), or None if verification fails.

    For independent rows B they are the diagonal of ``L Σ L'``, ``L = W B⁺``, in double-double arithmetic; for dependent
    rows that determine every cell the diagonal of ``W C⁻¹ W'``, ``C = B' Σ⁻¹ B``.
    """
    factors = _variance_factors(noise, queries, independent, rows)
    return None if factors is None else _row_products(*factors)


def proven_covariance(noise: Array, queries: Array, independent: bool, rows: Array) -> Array | None:
    """Return the covariance of the answers (m, m), with errors relative to the diagonal; see `proven_variances`."""
    factors = _variance_factors(noise, queries, independent, rows)
    if factors is None or _row_products(*factors) is None:
        return None
    covariance = (factors[0] @ factors[1].T).high
    return (covariance + covariance.T) / 2


def _variance_factors(
    noise: Array, queries: Array, independent: bool, rows: Array
) -> tuple[Enclosure, Enclosure, float] | None:
    """Return ``L V`` and L, with ``L V L'`` the covariance of the answers, and the largest variance of the noise."""
    if independent and queries.shape[0] == queries.shape[1]:
        # ``L B D = W D`` has the same L: cells are scaled by powers of 2.
        units = np.ldexp(1.0, -np.frexp(np.abs(queries).max(axis=0))[1])
        queries, rows = queries * units, rows * units
    workload = Enclosure.of(rows)
    if independent:
        pseudoinverse = PseudoInverse.of(queries).enclosed()
        if pseudoinverse is None:
            return None
        factor = workload @ pseudoinverse
        return factor @ Enclosure.of(noise), factor, float(np.diagonal(noise).max())
    whitening = linalg.whitened(Enclosure.of(noise)) if np.all(np.diagonal(noise) > 0) else None
    if whitening is None:
        return None
    scaled = Enclosure.of(whitening[0].T) @ Enclosure.of(queries)
    cost_whitening = linalg.whitened(scaled.T @ (whitening[1] @ scaled))
    if cost_whitening is None:
        return None
    factor = workload @ Enclosure.of(cost_whitening[0])
    return factor @ cost_whitening[1], factor, 1.0


def _row_products(left: Enclosure, right: Enclosure, max_variance: float) -> Array | None:
    """Return the inner products of the rows of both, None if one has a relative error above `VARIANCE_TOL`."""
    values, errors = left.row_products(right)
    values = np.maximum(values, 0.0)
    zero_limit = ZERO_VARIANCE * max_variance * np.einsum("jk,jk->j", right.high, right.high)
    accurate = (errors <= VARIANCE_TOL * values) | (values + errors <= zero_limit) | ~np.any(right.high, axis=1)
    return values if np.all(accurate) else None

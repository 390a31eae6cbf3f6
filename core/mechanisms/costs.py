"""Privacy costs and variances under Gaussian noise, and pseudoinverses, proven from residuals or in fractions."""

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

ORTHONORMAL = 1e-12
"""Largest entry of ``Q Q' - I``, for rows Q of unit norm, at which Q' serves as the pseudoinverse."""


@dataclass(frozen=True, slots=True, eq=False)
class PseudoInverse:
    """``Q⁺`` (d, k) in doubles, with what each column is proven to be off by at most.

    A design is brought to nearly orthonormal rows or columns by a triangle T from a factorisation with the long rows
    first and pivots, which need not be accurate: ``K = T Q`` and ``K K'`` are enclosed in twice the precision, and
    where that is close to the identity, ``Q⁺ = K' (K K')⁻¹ T`` for independent rows, ``Q⁺ = T (O'O)⁻¹ O'`` with
    ``O = Q T`` for independent columns. Where neither are independent, ``Q = H K`` by rows that span the others, and
    ``Q⁺ = K⁺ H⁺``; that they do must be proven, too.
    """

    design: Array  # (k, d) Q
    matrix: Array  # (d, k) Q⁺, with a zero column for an all-zero row of Q
    rounding: Array  # (k,) what the norm of a column's error does not exceed; infinite where nothing is proven
    basis: Array  # (r, d) orthonormal rows that span the rows of Q
    independent: bool  # whether the rows of Q that are not all zero are linearly independent
    known: Enclosure | None  # in twice the precision, where that was computed already

    @classmethod
    def of(cls, design: Array) -> PseudoInverse:
        """Transpose orthogonal rows; enclose the pseudoinverse of others."""
        norms = np.linalg.norm(design, axis=1)
        kept = np.flatnonzero(norms)
        shape = design.shape[1], len(design)
        matrix, allowance = np.zeros(shape), np.zeros(len(norms))
        rows = design[kept] / norms[kept, None]
        if len(rows) <= shape[0]:
            defect, error = gram_defect(rows)
            if np.abs(defect).max() <= ORTHONORMAL:
                off = np.linalg.norm(defect, axis=0) + np.sqrt(len(rows)) * error
                # With ``K K' = I + E``, ``K⁺ - K' = -K'E (I + E)⁻¹``; K is rounded, and so is its scale.
                reach = float(np.linalg.norm(off)) + 3 * UNIT * len(rows)
                if reach < 1e-3:
                    matrix[:, kept] = rows.T / norms[kept]
                    allowance[kept] = 1.01 * (off + (3 * np.sqrt(len(rows)) + 4) * UNIT) / norms[kept]
                    return cls(design, matrix, allowance, rows, True, None)
        basis = linalg.row_basis(design)
        known = _enclosed(design, kept, len(basis))
        if known is None:
            matrix[:, kept], allowance[kept] = np.linalg.pinv(design[kept]), np.inf
        else:
            matrix = known.high
            allowance = np.linalg.norm(np.abs(known.low) + known.radius, axis=0) * UPWARDS
        return cls(design, matrix, allowance, basis, len(basis) == len(kept), known)

    def enclosed(self) -> Enclosure | None:
        """Return the pseudoinverse in twice the precision; None where none is proven."""
        if self.known is not None or not np.all(np.isfinite(self.rounding)):
            return self.known
        return _enclosed(self.design, np.flatnonzero(np.any(self.design, axis=1)), len(self.basis))


def _enclosed(design: Array, kept: npt.NDArray[np.intp], rank: int) -> Enclosure | None:
    """Return the pseudoinverse, where it can be proven, with columns of zeros for rows of zeros."""
    if linalg.is_identity(design):
        return Enclosure.of(design)
    rows, cells = design[kept], design.shape[1]
    # Rows are scaled by powers of 2 where they are independent: ``(D Q)⁺ = Q⁺ D⁻¹`` then, so that units are immaterial.
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
        whole = np.zeros((cells, len(design)))
        whole[:, kept] = array
        parts.append(whole)
    return Enclosure(*parts)


def _of_independent(rows: Array) -> Enclosure | None:
    """Return ``Q⁺ = K' (K K')⁻¹ T`` of independent rows."""
    root, order = _row_root(rows, len(rows))
    root[:, order] = root.copy()
    orthonormal = Enclosure.of(root) @ Enclosure.of(rows)
    middle = inverse_near_identity(orthonormal @ orthonormal.T)
    return None if middle is None else orthonormal.T @ (middle @ Enclosure.of(root))


def _of_spanning(rows: Enclosure) -> Enclosure | None:
    """Return ``Q⁺ = T (O'O)⁻¹ O'`` of independent columns."""
    root = Enclosure.of(_column_root(rows.high))
    orthonormal = rows @ root
    middle = inverse_near_identity(orthonormal.T @ orthonormal)
    return None if middle is None else (root @ middle) @ orthonormal.T


def _of_dependent(rows: Array, units: Array, rank: int) -> Enclosure | None:
    """Return ``Q⁺ = K⁺ H⁺``, ``Q = H K``, where K stands for as many rows as the rank, which span all."""
    scaled = rows * units[:, None]
    root, order = _row_root(scaled, rank)
    chosen = order[:rank]
    orthonormal = Enclosure.of(root) @ Enclosure.of(scaled[chosen])
    gram = orthonormal @ orthonormal.T
    middle = inverse_near_identity(gram)
    if middle is None:
        return None
    half = orthonormal.T @ middle
    tall = Enclosure.of(rows) @ half
    left = (Enclosure.of(rows) - tall @ orthonormal).T.columns_scaled(units).T
    spread = (gram - Enclosure.of(np.eye(rank))).norm()
    if not proves_span(scaled, chosen, np.diagonal(root), left, spread):
        return None
    others = _of_spanning(tall)
    return None if others is None else half @ others


def _row_root(rows: Array, rank: int) -> tuple[Array, npt.NDArray[np.intp]]:
    """Return a triangle T that makes as many rows nearly orthonormal, and an order of rows that has these first."""
    triangle, order = scipy.linalg.qr(rows.T, mode="r", pivoting=True, check_finite=False)
    return _inverse(triangle[:rank, :rank]).T.copy(), order


def _column_root(rows: Array) -> Array:
    """Return T such that ``Q T`` has nearly orthonormal columns, however long the rows are next to each other."""
    long_first = np.argsort(-np.linalg.norm(rows, axis=1), kind="stable")
    triangle, order = scipy.linalg.qr(rows[long_first], mode="r", pivoting=True, check_finite=False)
    root = np.zeros((rows.shape[1], rows.shape[1]))
    root[order] = _inverse(triangle[: rows.shape[1]])
    return root


def _inverse(triangle: Array) -> Array:
    """Return the inverse of a triangle, NaN where it has none."""
    if not np.all(np.diagonal(triangle)):
        return np.full(triangle.shape, np.nan)
    return np.asarray(scipy.linalg.solve_triangular(triangle, np.eye(len(triangle)), check_finite=False))


TOLD = 1e-9
"""What a variance may be off by, relative."""

LEAST_TOLD = 1e-6
"""What a variance may be off by, relative, that is told at all."""

FAINT = 1e-10
"""Share of the largest variance that is too little to be told as well as the others."""

NOTHING = 1e-20
"""Share of the largest variance that may stand in an answer below which there is none: the answer is exact."""


def require_told(
    variances: Array, off: Array, noise: float = 0.0, unmoved: npt.NDArray[np.bool_] | bool = False
) -> Array:
    """Return variances that may be off by so much, absolute, as far as they can be told.

    A variance is off by at most `LEAST_TOLD` of it. If the `noise` that it is made of is stated, it may be rounded up:
    by a hundredth of it at most, and `FAINT` of the largest, or of the noise. Others are refused, but for answers that
    are `unmoved` by all neighbours: these have noise for the sake of a definite covariance alone, and are rounded up by
    any amount.
    """
    certain = off <= LEAST_TOLD * variances
    faint = ~certain & (noise > 0) & (off <= 0.01 * variances) & (off <= FAINT * variances.max(initial=noise))
    known = certain | faint | (off == 0) | unmoved
    if not np.all(known):
        worst = int(np.argmin(known))
        raise InvalidInputError(
            f"workload has variances that cannot be told from rounding, such as query {worst} has: the noise on "
            "what it adds up is so much larger"
        )
    return np.where(faint | (unmoved & ~certain), variances + off, variances)


def profile(noise: Array, queries: Array, neighbours: Matrix | None) -> Array:
    """Return what no pair of neighbours exceeds, infinite for what rounding does not tell from an exact answer."""
    if not len(noise):
        return np.zeros(queries.shape[1] if neighbours is None else neighbours.shape[1])
    singular = linalg.is_singular(noise)
    judged = judged_costs(noise, queries, neighbours) if singular else 0.0
    costs = proven_costs(noise, queries, neighbours)
    return np.where(np.isinf(judged), np.inf, costs)


def judged_costs(noise: Array, queries: Array, neighbours: Matrix | None) -> Array:
    """Return the costs as a judge takes them, who raises a covariance that rounding left singular."""
    moves, rounding = moves_between(queries, neighbours)
    judged = linalg.inverse_forms(noise, moves, rounding)
    if judged is None:
        raise InvalidInputError(
            f"covariance must be positive semidefinite and not zero, "
            f"its smallest eigenvalue is {np.linalg.eigvalsh(noise)[0]:.3g}"
        )
    return judged[1] + judged[2]


def proven_costs(noise: Array, queries: Array, neighbours: Matrix | None) -> Array:
    """Return what ``(B u)' Σ⁻¹ (B u)`` does not exceed for each pair of neighbours u (s,).

    With a triangle T that makes ``C = T' Σ T`` nearly the identity, which is proven in twice the precision, the cost
    is ``z' C⁻¹ z``, ``z = T' B u``. Where no T does, few and small numbers are compared in fractions, and it is
    infinite for every other move that is not exactly zero.
    """
    moves, rounding = _moves(queries, neighbours)
    noisy = np.diagonal(noise) > 0
    seen = np.any((moves != 0) | (rounding > 0), axis=0)
    judged = _by_factor(noise[np.ix_(noisy, noisy)], moves[noisy], rounding[noisy])
    if judged is not None:
        costs = _raised(*judged)
        silent = np.any((moves[~noisy] != 0) | (rounding[~noisy] > 0), axis=0)
        return np.where(silent, np.inf, costs)
    if len(noise) ** 2 * (len(noise) + moves.shape[1]) > MAX_EXACT_PRODUCTS:
        return np.where(seen, np.inf, 0.0)
    return _in_fractions(noise, queries, neighbours)


def least_costs(noise: Array, queries: Array, neighbours: Matrix | None) -> Array:
    """Return lower bounds on ``(B u)' Σ⁻¹ (B u)`` for all pairs of neighbours u (s,), 0 where nothing is proven."""
    moves, rounding = _moves(queries, neighbours)
    costs = _by_factor(noise, moves, rounding) if np.all(np.diagonal(noise) > 0) else None
    if costs is None:
        return np.zeros(moves.shape[1])
    return np.maximum((costs[0] - costs[1] * UPWARDS) * (1 - 4 * UNIT), 0.0)


def _moves(queries: Array, neighbours: Matrix | None) -> tuple[Array, Array]:
    """Return how neighbours change the answers (k, s), and the error of each entry."""
    return (queries, np.zeros_like(queries)) if neighbours is None else product(queries, neighbours)


def _raised(costs: Array, off: Array) -> Array:
    return np.where(off > 0, (costs + off * UPWARDS) * (1 + 4 * UNIT), costs)


def _by_factor(noise: Array, moves: Array, rounding: Array) -> tuple[Array, Array] | None:
    """Return the costs and their errors where a covariance is proven to be positive definite, else None."""
    if not len(noise):
        return np.zeros(moves.shape[1]), np.zeros(moves.shape[1])
    scaled_noise, units = linalg.in_powers_of_two(noise)
    scaled = Enclosure.of(scaled_noise)
    whitening = linalg.whitened(scaled)
    if whitening is None:
        return None
    root, inverse = whitening
    before = Enclosure(moves * units[:, None], np.zeros_like(moves), rounding * units[:, None])
    after = Enclosure.of(root.T) @ before
    terms = np.einsum("ki,ki->i", after.high, inverse.high @ after.high)
    squares = np.einsum("ki,ki->i", after.high, after.high)
    if linalg.is_identity(scaled.high) and not np.any(rounding) and np.all(before.high == np.rint(before.high)):
        return squares, np.where(squares <= 2**53, 0.0, squares * (UPWARDS - 1))  # sums of whole squares are exact
    left = np.linalg.norm(np.abs(after.low) + after.radius, axis=0)
    length, reach = np.sqrt(squares), inverse.norm()
    off = left * (2 * length + left) * reach
    off += (2 * sum_rounding(len(noise)) * reach + float(np.linalg.norm(inverse.low + inverse.radius))) * squares
    return terms, off


def _in_fractions(noise: Array, queries: Array, neighbours: Matrix | None) -> Array:
    """Return the costs by elimination in fractions; infinite outside of the range, and for no covariance."""
    moved = np.eye(queries.shape[1]) if neighbours is None else linalg.to_dense(neighbours)
    rows = [[Fraction(entry) for entry in row] for row in queries.tolist()]
    columns = [[Fraction(entry) for entry in column] for column in moved.T.tolist()]
    left = [[Fraction(entry) for entry in row] for row in noise.tolist()]
    moves = [
        [sum((a * b for a, b in zip(row, column, strict=True) if b), Fraction(0)) for column in columns] for row in rows
    ]
    costs: list[Fraction | float] = [Fraction(0)] * len(columns)
    for place, row in enumerate(left):
        pivot = row[place]
        if pivot < 0 or (pivot == 0 and any(row[place:])):
            return np.where(np.any(np.array(moves) != 0, axis=0), np.inf, 0.0)
        for index, move in enumerate(moves[place]):
            if move:
                costs[index] = costs[index] + move**2 / pivot if pivot else np.inf
        for below in range(place + 1, len(left)):
            if left[below][place]:
                factor = left[below][place] / pivot
                left[below] = [a - factor * b for a, b in zip(left[below], row, strict=True)]
                moves[below] = [a - factor * b for a, b in zip(moves[below], moves[place], strict=True)]
    return np.array([np.nextafter(float(cost), np.inf) if cost else 0.0 for cost in costs])


Noisy = tuple[Array, Array]
"""Rows B (k, d), and the covariance Σ (k, k) of the noise on them."""

ALIKE = 1e-7
"""Largest share by which costs of two mechanisms may differ for one to be stated as the other on other rows."""


def whitening_root(covariance: Array) -> Array | None:
    """Return T with ``T Σ T' = I``; None of a matrix that is not positive definite."""
    factor = linalg.cholesky(covariance)
    if factor is None:
        return None
    return np.asarray(scipy.linalg.solve_triangular(factor, np.eye(len(factor)), trans="T", check_finite=False))


def entry_condition(root: Array, covariance: Array) -> float:
    """Return a bound on ``‖T E T'‖`` for errors E of at most the entries of V, relative to ``T V T' = I``."""
    sizes = np.abs(root)
    return spectral_norm(sizes @ np.abs(covariance) @ sizes.T)


def rounding_share(root: Array, covariance: Array) -> float:
    """Return by which share costs and variances may be off for a computed V, (n, n), with ``T V T' = I``."""
    return 16 * (len(covariance) + 2) * linalg.EPS * entry_condition(root, covariance)


def equivalence_error(first: Noisy, second: Noisy) -> float:
    """Return δ with ``|u'C u - u'D u| ≤ δ u'D u`` for all u in the span of the second's independent rows.

    C and D are the cost matrices of the two, on a basis X of the span on which ``X'D X`` is nearly the identity: in
    doubles if their rounding hides little, else in twice the precision. Infinite if nothing is proven.
    """
    factor = linalg.cholesky(second[1])
    if factor is None:
        return np.inf
    rows = scipy.linalg.solve_triangular(factor, second[0], trans="T", check_finite=False)
    units, orthonormal, triangle = linalg.row_factors(rows)
    basis = units[:, None] * scipy.linalg.solve_triangular(triangle, orthonormal.T, check_finite=False).T
    quick = [_form_in_doubles(*noisy, basis) for noisy in (first, second)]
    error = float(np.linalg.norm(quick[0][0] - quick[1][0])) + quick[0][1] + quick[1][1]
    if error <= ALIKE:
        away = float(np.linalg.norm(quick[1][0] - np.eye(len(rows)))) + quick[1][1]
        if away < 0.5:
            return error / (1 - away)
    forms = [_form(*noisy, basis) for noisy in (first, second)]
    if forms[0] is None or forms[1] is None or (inverse := inverse_near_identity(forms[1])) is None:
        return np.inf
    return (forms[0] - forms[1]).norm() * inverse.norm() * UPWARDS


def _form_in_doubles(queries: Array, noise: Array, basis: Array) -> tuple[Array, float]:
    """Return ``X'B' Σ⁻¹ B X`` and a bound on the norm of its error; infinite where Σ has no Cholesky factor."""
    inverse = whitening_root(noise)
    if inverse is None:
        return np.zeros((basis.shape[1],) * 2), np.inf
    answers = inverse @ (queries @ basis)
    reach = spectral_norm(np.abs(answers))
    # What is off in T, by which ``T Σ T' = I``, and in products of as many terms as cells and rows.
    off = entry_condition(inverse, noise) * reach**2
    off += 2 * reach * spectral_norm(np.abs(inverse) @ (np.abs(queries) @ np.abs(basis)))
    return answers.T @ answers, 4 * sum_rounding(len(noise) + len(basis) + 8) * off


def _form(queries: Array, noise: Array, basis: Array) -> Enclosure | None:
    """Return ``X'B' Σ⁻¹ B X``; None where Σ is not proven to be positive definite."""
    scaled, units = linalg.in_powers_of_two(noise)
    whitening = linalg.whitened(Enclosure.of(scaled))
    if whitening is None:
        return None
    root, inverse = whitening
    answers = Enclosure.of(root.T) @ (Enclosure.of(queries * units[:, None]) @ Enclosure.of(basis))
    return answers.T @ (inverse @ answers)


def proven_variances(noise: Array, queries: Array, independent: bool, rows: Array) -> Array | None:
    """Return the variances of answers (m,) by generalised least squares; None where nothing proves them.

    Of independent rows B they are those of ``L = W B⁺``, ``L Σ L'``, in twice the precision. Of dependent rows that
    determine every cell they are ``W C⁻¹ W'`` with ``C = B' Σ⁻¹ B``.
    """
    spread = _spread(noise, queries, independent, rows)
    return None if spread is None else _told(*spread)


def proven_covariance(noise: Array, queries: Array, independent: bool, rows: Array) -> Array | None:
    """Return the covariance of answers (m, m), with errors relative to the diagonal, as in `proven_variances`."""
    spread = _spread(noise, queries, independent, rows)
    if spread is None or _told(*spread) is None:
        return None
    total = (spread[0] @ spread[1].T).high
    return (total + total.T) / 2


def _spread(noise: Array, queries: Array, independent: bool, rows: Array) -> tuple[Enclosure, Enclosure, float] | None:
    """Return ``L Σ`` and L, which map answers to the queries, and the largest variance of an answer."""
    if independent and queries.shape[0] == queries.shape[1]:
        # L with ``L B = W`` is that of ``B D`` and ``W D``: units of the cells are immaterial.
        units = np.ldexp(1.0, -np.frexp(np.abs(queries).max(axis=0))[1])
        queries, rows = queries * units, rows * units
    wanted = Enclosure.of(rows)
    if independent:
        known = PseudoInverse.of(queries).enclosed()
        if known is None:
            return None
        combined = wanted @ known
        return combined @ Enclosure.of(noise), combined, float(np.diagonal(noise).max())
    spread = linalg.whitened(Enclosure.of(noise)) if np.all(np.diagonal(noise) > 0) else None
    if spread is None:
        return None
    scaled = Enclosure.of(spread[0].T) @ Enclosure.of(queries)
    again = linalg.whitened(scaled.T @ (spread[1] @ scaled))
    if again is None:
        return None
    combined = wanted @ Enclosure.of(again[0])
    return combined @ again[1], combined, 1.0


def _told(left: Enclosure, right: Enclosure, largest: float) -> Array | None:
    """Return the sums of products of the entries of each row, None where they are not told from their rounding."""
    values, off = left.row_products(right)
    values = np.maximum(values, 0.0)
    nothing = NOTHING * largest * np.einsum("jk,jk->j", right.high, right.high)
    certain = (off <= TOLD * values) | (values + off <= nothing) | ~np.any(right.high, axis=1)
    return values if np.all(certain) else None

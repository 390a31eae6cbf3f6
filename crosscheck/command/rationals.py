"""Blackboard proofs: an optimum in exact rational arithmetic, where it has one with small denominators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce

import numpy as np
import numpy.typing as npt

from dualmech import linalg
from dualmech.problems.fitness import FitnessForUse
from dualmech.solution import Solution

Rows = list[list[Fraction]]

LARGEST_SIZE = 12
"""Largest rank, and half the largest number of cells or queries, for which a proof is sought."""

LARGEST_DENOMINATOR = 1000
"""Largest denominator that a proof may have; beyond it nobody would put it on a blackboard."""

CLOSE = 1e-5  # largest distance of a number from the fraction that is tried for it; the proof itself is exact


@dataclass(frozen=True, slots=True)
class RationalProof:
    """Σ, λ, μ and α as fractions, with ``Σ Q Σ = scale · P`` and both sides equal to α, checked exactly."""

    covariance: Rows
    neighbour_weights: list[Fraction]
    query_weights: list[Fraction]
    scale: Fraction
    optimum: Fraction


def worth_trying(problem: FitnessForUse) -> bool:
    """Whether a problem is small enough for a blackboard, and stated on its cells, where numbers stay rational."""
    moves, queries = problem.geometry.moves, problem.geometry.representation
    small = problem.geometry.rank <= LARGEST_SIZE and max(moves.shape[1], len(queries)) <= 2 * LARGEST_SIZE
    return small and linalg.is_identity(problem.basis)


def prove(solution: Solution) -> RationalProof | None:
    """Look for an exact proof near a floating-point solution; None where there is none to be found.

    The argument, for ``P = B U diag(λ) U' B'`` and ``Q = L' diag(μ) L``: if ``Σ Q Σ = t P``, then Σ is a
    multiple of the geometric mean of P and the inverse of Q, the trace norm of ``diag(√μ) W U diag(√λ)`` is
    ``tr(Q Σ) / √t``, and its square over ``Σλ Σμc`` bounds α from below without a root to take.
    """
    problem = solution.problem
    if not isinstance(problem, FitnessForUse) or not worth_trying(problem):
        return None
    moves, queries = problem.geometry.moves, problem.geometry.representation
    arrays = (moves, queries, problem.targets, solution.primal, *solution.dual)
    found = [_fractions(array) for array in arrays]
    if any(part is None for part in found):
        return None
    d, v, (c,), sigma, (lam,), (mu,) = (part for part in found if part is not None)
    on_moved = _on_moved(d, v, sigma)
    if on_moved is None:
        return None
    proof = _verify(*on_moved, c, lam, mu)
    return None if proof is None else replace(proof, covariance=sigma)


def _on_moved(moves: Rows, queries: Rows, sigma: Rows) -> tuple[Rows, Rows, Rows] | None:
    """Return moves, queries and noise in coordinates of what neighbours move: there Σ is not singular.

    Independent moves D span that, so that ``Σ = D M D'``, a query v is ``v'D`` and a move ``D y`` has the coordinates
    y. None where Σ is noise on something else.
    """
    reduced, chosen = _row_echelon(moves)
    if len(chosen) == len(moves):
        return moves, queries, sigma
    spanning = [[row[column] for column in chosen] for row in moves]
    gram = _inverse(_product(_transpose(spanning), spanning))
    if gram is None:
        return None
    left = _product(gram, _transpose(spanning))
    inner = _product(_product(left, sigma), _transpose(left))
    if _product(_product(spanning, inner), _transpose(spanning)) != sigma:
        return None
    return reduced[: len(chosen)], _product(queries, spanning), inner


def _verify(
    moves: Rows, queries: Rows, sigma: Rows, targets: list[Fraction], lam: list[Fraction], mu: list[Fraction]
) -> RationalProof | None:
    inverse = _inverse(sigma)
    if inverse is None or sigma != _transpose(sigma) or min(*lam, *mu) < 0:
        return None
    columns = _transpose(moves)
    profile = [_form(inverse, column) for column in columns]
    variances = [_form(sigma, row) for row in queries]
    if any(variance > target for variance, target in zip(variances, targets, strict=True)):
        return None
    p = _weighted_gram(columns, lam)
    q = _weighted_gram(queries, mu)
    left = _product(_product(sigma, q), sigma)
    scale = next(
        (a / b for row, other in zip(left, p, strict=True) for a, b in zip(row, other, strict=True) if b),
        None,
    )
    if scale is None or scale <= 0 or left != [[scale * entry for entry in row] for row in p]:
        return None
    traced = sum((m * variance for m, variance in zip(mu, variances, strict=True)), Fraction(0))
    masses = sum(lam, Fraction(0)) * sum((m * c for m, c in zip(mu, targets, strict=True)), Fraction(0))
    optimum = max(profile)
    return RationalProof(sigma, lam, mu, scale, optimum) if traced**2 / scale / masses == optimum else None


def _fractions(array: npt.ArrayLike) -> Rows | None:
    rows = []
    for row in np.atleast_2d(np.asarray(array, dtype=np.float64)):
        fractions = [Fraction(float(entry)).limit_denominator(LARGEST_DENOMINATOR) for entry in row]
        if np.any(np.abs(row - [float(entry) for entry in fractions]) > CLOSE):
            return None
        rows.append(fractions)
    return rows


def _transpose(rows: Rows) -> Rows:
    return [list(column) for column in zip(*rows, strict=True)]


def _product(left: Rows, right: Rows) -> Rows:
    columns = _transpose(right)
    return [[_dot(row, column) for column in columns] for row in left]


def _dot(left: Sequence[Fraction], right: Sequence[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(left, right, strict=True)), Fraction(0))


def _form(matrix: Rows, vector: list[Fraction]) -> Fraction:
    return _dot([_dot(row, vector) for row in matrix], vector)


def _weighted_gram(vectors: Rows, weights: list[Fraction]) -> Rows:
    parts = [
        [[weight * a * b for b in vector] for a in vector]
        for vector, weight in zip(vectors, weights, strict=True)
    ]
    return reduce(
        lambda x, y: [[a + b for a, b in zip(r, s, strict=True)] for r, s in zip(x, y, strict=True)], parts
    )


def _row_echelon(matrix: Rows) -> tuple[Rows, list[int]]:
    """Return the reduced row echelon form, and the columns of its pivots: those that are independent."""
    work = [list(row) for row in matrix]
    pivots: list[int] = []
    for column in range(len(matrix[0])):
        rank = len(pivots)
        found = next((row for row in range(rank, len(work)) if work[row][column]), None)
        if found is None:
            continue
        work[rank], work[found] = work[found], work[rank]
        work[rank] = [entry / work[rank][column] for entry in work[rank]]
        for other in range(len(work)):
            if other != rank and work[other][column]:
                factor = work[other][column]
                work[other] = [a - factor * b for a, b in zip(work[other], work[rank], strict=True)]
        pivots.append(column)
    return work, pivots


def _inverse(matrix: Rows) -> Rows | None:
    """Invert a positive definite matrix by elimination; None where a pivot is not positive."""
    size = len(matrix)
    work = [row + [Fraction(int(i == j)) for j in range(size)] for i, row in enumerate(matrix)]
    for pivot in range(size):
        if work[pivot][pivot] <= 0:
            return None
        work[pivot] = [entry / work[pivot][pivot] for entry in work[pivot]]
        for other in range(size):
            if other != pivot and work[other][pivot]:
                factor = work[other][pivot]
                work[other] = [a - factor * b for a, b in zip(work[other], work[pivot], strict=True)]
    return [row[size:] for row in work]

"""The numbers that show both bounds: Gaussian noise on a matrix, common mechanisms, reuse, soft maxima, weighting."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import scipy.linalg

from dualmech import linalg
from dualmech.crosscheck.proofs.checker import exact
from dualmech.crosscheck.proofs.checker.exact import Matrix
from dualmech.crosscheck.proofs.texts import Parts, PrimalAndDual, exactly, root_below
from dualmech.errors import CertificateError, InvalidInputError
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.linalg import EPS
from dualmech.problems.base import OnGeometry, Problem
from dualmech.problems.common import CommonDual, CommonMechanism
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.validate import Array

ItemDual: TypeAlias = FitnessDual | VarianceDual  # of problems on a geometry

LARGEST = 2**32  # most multiplications of whole numbers that a proof may take to check: some minutes

FAINT = 1e-13
"""Least variance that noise is given, over its largest: where it has none, something is released exactly, which no
strategy measures."""

SIDE = 1e-6
"""Size of the measurement of queries that nobody asks, over the rest: a strategy must be invertible."""

INVERSE_BITS, CLOSE, MOST_STEPS = 106, Fraction(1, 2**50), 6
"""Bits of an inverse's numbers, the largest rest of ``A Z - I``, and steps to get there."""


def refuse_large(problem: Problem, stated: Parts) -> None:
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    (queries, cells), moves = stated["workload"].shape, stated["neighbours"]
    pairs = cells if moves is None else moves.shape[1]
    least = min(queries, pairs)
    work = cells**3 + queries * cells**2 + queries * pairs * (least + (0 if moves is None else cells))
    limited(work, f"{queries} queries on {cells} cells")


def limited(work: float, words: str) -> None:
    """Refuse more multiplications than `LARGEST`."""
    if work > LARGEST:
        raise InvalidInputError(
            f"a proof in whole numbers of {words} takes {work:.1e} multiplications, more than {LARGEST:.1e}; the "
            "certificate in floating point has no such limit"
        )


def witness(problem: OnGeometry, primal: Array, dual: ItemDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    roots = roots_of_queries(dual, stated)
    return sides(problem, primal), trace_norm(roots, np.sqrt(dual.neighbour_weights), stated)


def roots_of_queries(dual: ItemDual, stated: Parts) -> Array:
    """Return p: roots of the weights of queries, of fixed ones rounded down."""
    if isinstance(dual, FitnessDual):
        return np.sqrt(np.asarray(dual.query_weights))
    return np.array([root_below(weight) for weight in stated["numbers"].tolist()])


def sides(problem: OnGeometry | ReuseFitness | SoftmaxFitness, primal: Array) -> Parts:
    """Return a strategy whose unit noise has the covariance of a point on B x, and its inverse."""
    basis, covariance = problem.geometry.on_rows(primal)
    return measured(basis, covariance, problem.neighbours)


def measured(basis: Array, covariance: Array, moves: Any) -> Parts:
    """Return a strategy whose unit noise has a given covariance on B x, and its inverse."""
    strategy = square_strategy(basis, covariance, moves)
    lengths = np.linalg.norm(strategy, axis=1)
    guess = (
        np.linalg.pinv(strategy / lengths[:, None], rcond=0) / lengths
        if np.any(np.tril(strategy, -1))
        else scipy.linalg.solve_triangular(strategy, np.eye(len(strategy)), check_finite=False)
    )
    return {"strategy": strategy, "inverse": inverse(strategy, guess)}


def trace_norm(query_roots: Array, neighbour_roots: Array, stated: Parts) -> Parts:
    """Return roots of dual weights, and the polar factor of the matrix whose trace norm bounds the optimum."""
    changes = query_roots[:, None] * moved(stated["workload"], stated["neighbours"]) * neighbour_roots
    return {"query_roots": query_roots, "neighbour_roots": neighbour_roots, "isometry": polar_factor(changes)}


def polar_factor(matrix: Array) -> Array:
    """Return Q with no singular value above 1 for which ``⟨A, Q⟩`` is the trace norm of A."""
    left, _, right = linalg.svd(matrix)
    return np.asarray(left @ right)


def moved(rows: Array, neighbours: Any) -> Array:
    return rows if neighbours is None else linalg.to_dense(rows @ neighbours)


def square_strategy(basis: Array, covariance: Array, moves: Any) -> Array:
    """Return a square strategy A (d, d), mostly upper triangular, whose unit noise has a given covariance on B x.

    Where noise has no variance it gets a `FAINT` one; directions that B does not see are measured faintly as well.
    """
    spread = np.sqrt(np.diagonal(covariance))
    # The rounding of an exact row must stay small where neighbours do not move it.
    exact_rows = spread <= FAINT * spread.max()
    spread = np.where(exact_rows, np.sqrt(FAINT) * spread.max(), spread)
    if not (np.all(np.isfinite(covariance)) and spread.min() > 0):
        raise CertificateError("the answer shows nothing in whole numbers: its noise is no covariance")
    values, vectors = np.linalg.eigh(covariance / np.outer(spread, spread) + np.diag(1.0 * exact_rows))
    weights = np.sqrt(np.maximum(values, FAINT * values[-1]))
    measured = (vectors / weights).T @ (basis / spread[:, None])
    unseen = scipy.linalg.null_space(basis).T
    cost, side = (np.sqrt(np.square(moved(rows, moves)).sum(axis=0).max(initial=0)) for rows in (measured, unseen))
    rows = np.vstack([measured, SIDE * cost / (side or 1.0) * unseen])
    if np.any(exact_rows):  # reflections would spread the rounding of such a row over all others
        return rows
    triangle: Array = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: basis.shape[1]]
    return triangle


def inverse(strategy: Array, guess: Array) -> Matrix:
    """Return Z with ``A Z`` next to I: a guess, improved by Newton's steps ``Z - Z (A Z - I)`` in whole numbers."""
    if not (np.all(np.isfinite(guess)) and np.all(np.isfinite(strategy))):
        raise CertificateError("the answer shows nothing in whole numbers: its noise has no inverse")
    return improved(exactly(strategy), exactly(guess))


def improved(
    whole: Matrix, inverse: Matrix, close: Fraction = CLOSE, bits: int = INVERSE_BITS, steps: int = MOST_STEPS
) -> Matrix:
    """Return an inverse improved until ``|A Z - I|`` is at most `close`, or the steps are over."""
    for _ in range(steps):
        error = exact.departure(whole, inverse)
        if sum(error.squares()) <= close**2:
            break
        inverse = shortened(inverse.plus(inverse.times(error), -1), bits)
    return inverse


def shortened(matrix: Matrix, bits: int) -> Matrix:
    rows = [
        [(entry >> dropped) << dropped for entry in row for dropped in (max(entry.bit_length() - bits, 0),)]
        for row in matrix.rows
    ]
    return Matrix(rows, matrix.exponent)


# Common mechanisms: a covariance with roots of its excess over the others, and roots of the dual weights.


def refuse_large_common(problem: Problem, stated: Parts) -> None:
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    mechanisms = stated["mechanisms"]
    size = len(mechanisms[0]["covariance"])
    limited(2 * len(mechanisms) * size**3, f"{len(mechanisms)} mechanisms and {size} common queries")


def refuse_large_volume(problem: Problem, stated: Parts) -> None:
    """Refuse likewise: numbers of an elimination have as many words as there are rows."""
    mechanisms = stated["mechanisms"]
    size = len(mechanisms[0]["covariance"])
    limited(64 * len(mechanisms) * size**4, f"{len(mechanisms)} mechanisms and a volume of {size} common queries")


def common_witness(problem: CommonMechanism, primal: Array, dual: CommonDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    covariance = (primal + primal.T) / 2
    above = [{"root": root(covariance - mechanism["covariance"])} for mechanism in stated["mechanisms"]]
    below = [{"root": root(weight)} for weight in dual.weights]
    return {"covariance": covariance, "roots": above}, {"roots": below}


def root(matrix: Array) -> Array:
    """Return H with ``H H'`` the positive semidefinite part of a symmetric matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


# Reuse of a release: noise as `noise` has it, and rows of the release with the queries.


def refuse_large_reuse(problem: Problem, stated: Parts) -> None:
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    rows = [stated["workload"], *([] if stated["release"] is None else [stated["release"]])]
    refuse_large(problem, stated | {"workload": np.vstack(rows)})


def reuse_witness(problem: ReuseFitness, primal: Array, dual: ReuseDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    upper, roots, queries = sides(problem, primal), np.sqrt(dual.query_weights), stated["workload"]
    extra: Parts = {}
    if stated["release"] is not None:
        coordinates = problem.rows.coordinates
        upper["frame"] = np.linalg.eigh(coordinates @ primal @ coordinates.T)[1]
        extra = {"release_rows": root(np.asarray(dual.release_weights)).T}
        queries = np.vstack([queries, extra["release_rows"] @ stated["release"]])
        roots = np.append(roots, np.ones(len(stated["release"])))
    lower = trace_norm(roots, np.sqrt(dual.neighbour_weights), stated | {"workload": queries})
    return upper, lower | extra


# Soft maxima: noise and weights as `noise` has them, with shares of queries.


def softmax_witness(problem: SoftmaxFitness, primal: Array, dual: SoftmaxDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    mu = [Fraction(weight) for weight in dual.query_weights.tolist()]
    total, weight = sum(mu) or Fraction(1), Fraction(stated["total_weight"])
    targets = [Fraction(target) for target in stated["targets"].tolist()]
    roots = np.array([root_below(share / (total * c) + weight) for share, c in zip(mu, targets, strict=True)])
    lower = trace_norm(roots, np.sqrt(dual.neighbour_weights), stated)
    return sides(problem, primal), lower | {"query_weights": dual.query_weights}


# Weights of design queries, and the inverse by which their costs are known.


WEIGHTING_CLOSE, BITS = Fraction(1, 2**80), 200
"""The largest rest of ``A Z - I``, and bits of the inverse's numbers: costs of all sizes are to be known."""


def refuse_large_weighting(problem: Problem, stated: Parts) -> None:
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    (queries, cells), rows = stated["workload"].shape, len(stated["design"])
    least, moves = min(rows, cells), stated["neighbours"]
    pairs = 0 if moves is None else moves.shape[1]
    work = rows * cells * (least + pairs) + queries * least * (least + cells) + 8 * least**3
    limited(work, f"{queries} queries on {rows} design queries over {cells} cells")


def weighting_witness(problem: QueryWeighting, primal: Array, dual: WeightingDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    design = stated["design"]
    kept = np.any(design, axis=1)
    weights = np.where(np.isfinite(primal), primal, 0.0)[kept]
    upper = {"weights": np.maximum(weights, FAINT * weights.max()), "inverse": _inverse_of_gram(design[kept])}
    return upper, {"neighbour_weights": dual.neighbour_weights}


def _inverse_of_gram(design: Array) -> exact.Matrix:
    """Return the inverse of ``Q Q'`` or, where rows are more than columns, of ``Q' Q``."""
    rows = design if len(design) <= design.shape[1] else design.T
    units = np.linalg.norm(rows, axis=1)
    if not np.all(units > 0):
        raise CertificateError("the answer shows nothing in whole numbers: a column of the design is all 0")
    scaled = rows / units[:, None]
    guess = np.linalg.pinv(scaled @ scaled.T, hermitian=True) / np.outer(units, units)
    whole = exactly(rows)
    gram = whole.times(whole.transposed())
    inverse = improved(gram, exactly(guess), WEIGHTING_CLOSE, BITS)
    if sum(exact.departure(gram, inverse).squares()) >= 1:
        raise CertificateError(
            "the answer shows nothing in whole numbers: neither rows nor columns of the design are independent"
        )
    return inverse


# Strategies of local privacy in numbers that sum to 1 exactly, and keep to e^ε for certain.


def summing_to_one(strategy: Array) -> Matrix:
    """Return a strategy with columns that sum to exactly 1: each largest entry takes the difference."""
    if not np.all(np.isfinite(strategy)):
        raise CertificateError("the answer shows nothing in whole numbers: its strategy is not finite")
    matrix = exactly(strategy)
    if matrix.exponent > 0:
        matrix = Matrix([[entry << matrix.exponent for entry in row] for row in matrix.rows], 0)
    safest = int(np.argmax(strategy.min(axis=1)))
    for column in range(strategy.shape[1]):
        missing = (1 << -matrix.exponent) - sum(row[column] for row in matrix.rows)
        matrix.rows[safest][column] += missing
    return matrix


def mixed(strategy: Array, other: Array, epsilon: float) -> Array:
    """Return a strategy with so much of another one, whose limits are slack, that rounding breaks no limit."""
    share = 16 * (sum(strategy.shape) + 2) * EPS / -np.expm1(-epsilon)
    return np.asarray((1 - share) * strategy + share * other)

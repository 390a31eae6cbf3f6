"""Data that prove both bounds: Gaussian noise on a matrix, common mechanisms, reuse, soft maxima, weighting."""

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

MAX_MULTIPLICATIONS = 2**32  # of integers, to check a proof: some minutes

MIN_VARIANCE_FACTOR = 1e-13
"""Smallest variance over the largest: a strategy cannot measure a query with variance 0."""

NULL_SPACE_FACTOR = 1e-6
"""Relative cost of the measurements outside the row space of the basis, which make the strategy invertible."""

INVERSE_BITS = 106  # of the entries of an inverse
RESIDUAL_TOL = Fraction(1, 2**50)  # for ``|A Z - I|``
MAX_NEWTON_STEPS = 6


def refuse_large(problem: Problem, statement: Parts) -> None:
    """Refuse a problem whose proof needs too many multiplications to check."""
    (queries, cells), neighbours = statement["workload"].shape, statement["neighbours"]
    pairs = cells if neighbours is None else neighbours.shape[1]
    smaller_size = min(queries, pairs)
    work = cells**3 + queries * cells**2 + queries * pairs * (smaller_size + (0 if neighbours is None else cells))
    limited(work, f"{queries} queries on {cells} cells")


def limited(work: float, label: str) -> None:
    if work > MAX_MULTIPLICATIONS:
        raise InvalidInputError(
            f"an exact proof of {label} takes {work:.1e} multiplications, more than {MAX_MULTIPLICATIONS:.1e}; the "
            "certificate in floating point has no such limit"
        )


def witness(problem: OnGeometry, primal: Array, dual: ItemDual, statement: Parts) -> PrimalAndDual:
    """Return the data that prove the upper and the lower bound."""
    roots = roots_of_queries(dual, statement)
    return sides(problem, primal), trace_norm(roots, np.sqrt(dual.neighbour_weights), statement)


def roots_of_queries(dual: ItemDual, statement: Parts) -> Array:
    """Return p, the square roots of the weights of the queries, rounded down for prescribed weights."""
    if isinstance(dual, FitnessDual):
        return np.sqrt(np.asarray(dual.query_weights))
    return np.array([root_below(weight) for weight in statement["numbers"].tolist()])


def sides(problem: OnGeometry | ReuseFitness | SoftmaxFitness, primal: Array) -> Parts:
    """Return a strategy A with unit noise that is equivalent to the mechanism of a point, and its inverse."""
    basis, covariance = problem.geometry.on_rows(primal)
    return measured(basis, covariance, problem.neighbours)


def measured(basis: Array, covariance: Array, neighbours: Any) -> Parts:
    """Return a strategy A with unit noise that answers B x with the given covariance, and its inverse."""
    strategy = square_strategy(basis, covariance, neighbours)
    lengths = np.linalg.norm(strategy, axis=1)
    guess = (
        np.linalg.pinv(strategy / lengths[:, None], rcond=0) / lengths
        if np.any(np.tril(strategy, -1))
        else scipy.linalg.solve_triangular(strategy, np.eye(len(strategy)), check_finite=False)
    )
    return {"strategy": strategy, "inverse": inverse(strategy, guess)}


def trace_norm(query_roots: Array, neighbour_roots: Array, statement: Parts) -> Parts:
    """Return roots of dual weights, and the polar factor of the matrix whose trace norm bounds the optimum."""
    changes = query_roots[:, None] * sensitivities_of(statement["workload"], statement["neighbours"]) * neighbour_roots
    return {"query_roots": query_roots, "neighbour_roots": neighbour_roots, "isometry": polar_factor(changes)}


def polar_factor(matrix: Array) -> Array:
    """Return Q with no singular value above 1 for which ``⟨A, Q⟩`` is the trace norm of A."""
    left, _, right = linalg.svd(matrix)
    return np.asarray(left @ right)


def sensitivities_of(rows: Array, neighbours: Any) -> Array:
    return rows if neighbours is None else linalg.to_dense(rows @ neighbours)


def square_strategy(basis: Array, covariance: Array, neighbours: Any) -> Array:
    """Return a square strategy A (d, d) with unit noise that answers B x with the given covariance.

    A is upper triangular unless a variance is 0. Variances of 0 are raised to `MIN_VARIANCE_FACTOR` times the largest;
    the null space of B is measured at a cost of about `NULL_SPACE_FACTOR` squared of the largest.
    """
    scales = np.sqrt(np.diagonal(covariance))
    # The rounding errors of an exact row must stay small for neighbours with equal answers.
    exact_rows = scales <= MIN_VARIANCE_FACTOR * scales.max()
    scales = np.where(exact_rows, np.sqrt(MIN_VARIANCE_FACTOR) * scales.max(), scales)
    if not (np.all(np.isfinite(covariance)) and scales.min() > 0):
        raise CertificateError("the answer proves no bound in exact arithmetic: its noise is not a covariance")
    values, vectors = np.linalg.eigh(covariance / np.outer(scales, scales) + np.diag(1.0 * exact_rows))
    weights = np.sqrt(np.maximum(values, MIN_VARIANCE_FACTOR * values[-1]))
    measured_rows = (vectors / weights).T @ (basis / scales[:, None])
    null_basis = scipy.linalg.null_space(basis).T
    cost, null_cost = (
        np.sqrt(np.square(sensitivities_of(rows, neighbours)).sum(axis=0).max(initial=0))
        for rows in (measured_rows, null_basis)
    )
    rows = np.vstack([measured_rows, NULL_SPACE_FACTOR * cost / (null_cost or 1.0) * null_basis])
    if np.any(exact_rows):  # reflections would spread the rounding of such a row over all others
        return rows
    triangle: Array = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: basis.shape[1]]
    return triangle


def inverse(strategy: Array, guess: Array) -> Matrix:
    """Return Z with ``A Z`` next to I: a guess, improved by Newton steps ``Z - Z (A Z - I)`` in exact arithmetic."""
    if not (np.all(np.isfinite(guess)) and np.all(np.isfinite(strategy))):
        raise CertificateError("the answer proves no bound in exact arithmetic: its noise has no inverse")
    return improved(exactly(strategy), exactly(guess))


def improved(
    matrix: Matrix,
    inverse: Matrix,
    tol: Fraction = RESIDUAL_TOL,
    bits: int = INVERSE_BITS,
    max_steps: int = MAX_NEWTON_STEPS,
) -> Matrix:
    """Return an inverse improved until ``|A Z - I|`` is at most `tol`, or for `max_steps` Newton steps."""
    for _ in range(max_steps):
        error = exact.departure(matrix, inverse)
        if sum(error.squares()) <= tol**2:
            break
        inverse = shortened(inverse.plus(inverse.times(error), -1), bits)
    return inverse


def shortened(matrix: Matrix, bits: int) -> Matrix:
    rows = [
        [(entry >> dropped) << dropped for entry in row for dropped in (max(entry.bit_length() - bits, 0),)]
        for row in matrix.rows
    ]
    return Matrix(rows, matrix.exponent)


# Common mechanisms: a covariance with roots of its excess over each mechanism, and roots of the dual weights.


def refuse_large_common(problem: Problem, statement: Parts) -> None:
    """Refuse a problem whose proof needs too many multiplications to check."""
    mechanisms = statement["mechanisms"]
    size = len(mechanisms[0]["covariance"])
    limited(2 * len(mechanisms) * size**3, f"{len(mechanisms)} mechanisms and {size} common queries")


def refuse_large_volume(problem: Problem, statement: Parts) -> None:
    """Refuse a problem that is too large; the length of the numbers of an elimination grows with the number of rows."""
    mechanisms = statement["mechanisms"]
    size = len(mechanisms[0]["covariance"])
    limited(64 * len(mechanisms) * size**4, f"{len(mechanisms)} mechanisms and a volume of {size} common queries")


def common_witness(problem: CommonMechanism, primal: Array, dual: CommonDual, statement: Parts) -> PrimalAndDual:
    """Return the data that prove the upper and the lower bound."""
    covariance = (primal + primal.T) / 2
    excess_roots = [{"root": root(covariance - mechanism["covariance"])} for mechanism in statement["mechanisms"]]
    weight_roots = [{"root": root(weight)} for weight in dual.weights]
    return {"covariance": covariance, "roots": excess_roots}, {"roots": weight_roots}


def root(matrix: Array) -> Array:
    """Return H with ``H H'`` the positive semidefinite part of a symmetric matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


# Reuse of a release: noise as above, and rows of the release in addition to the queries.


def refuse_large_reuse(problem: Problem, statement: Parts) -> None:
    """Refuse a problem whose proof needs too many multiplications to check."""
    rows = [statement["workload"], *([] if statement["release"] is None else [statement["release"]])]
    refuse_large(problem, statement | {"workload": np.vstack(rows)})


def reuse_witness(problem: ReuseFitness, primal: Array, dual: ReuseDual, statement: Parts) -> PrimalAndDual:
    """Return the data that prove the upper and the lower bound."""
    upper, roots, queries = sides(problem, primal), np.sqrt(dual.query_weights), statement["workload"]
    extra: Parts = {}
    if statement["release"] is not None:
        coordinates = problem.rows.coordinates
        upper["frame"] = np.linalg.eigh(coordinates @ primal @ coordinates.T)[1]
        extra = {"release_rows": root(np.asarray(dual.release_weights)).T}
        queries = np.vstack([queries, extra["release_rows"] @ statement["release"]])
        roots = np.append(roots, np.ones(len(statement["release"])))
    lower = trace_norm(roots, np.sqrt(dual.neighbour_weights), statement | {"workload": queries})
    return upper, lower | extra


# Soft maxima: noise and weights as above, with shares of queries.


def softmax_witness(problem: SoftmaxFitness, primal: Array, dual: SoftmaxDual, statement: Parts) -> PrimalAndDual:
    """Return the data that prove the upper and the lower bound."""
    mu = [Fraction(weight) for weight in dual.query_weights.tolist()]
    total, weight = sum(mu) or Fraction(1), Fraction(statement["total_weight"])
    targets = [Fraction(target) for target in statement["targets"].tolist()]
    roots = np.array([root_below(share / (total * c) + weight) for share, c in zip(mu, targets, strict=True)])
    lower = trace_norm(roots, np.sqrt(dual.neighbour_weights), statement)
    return sides(problem, primal), lower | {"query_weights": dual.query_weights}


# Weights of design queries, and the inverse that determines their costs.


WEIGHTING_RESIDUAL_TOL, WEIGHTING_INVERSE_BITS = Fraction(1, 2**80), 200
"""As `RESIDUAL_TOL` and `INVERSE_BITS`, but tighter, since costs differ by orders of magnitude."""


def refuse_large_weighting(problem: Problem, statement: Parts) -> None:
    """Refuse a problem whose proof needs too many multiplications to check."""
    (queries, cells), rows = statement["workload"].shape, len(statement["design"])
    smaller_size, neighbours = min(rows, cells), statement["neighbours"]
    pairs = 0 if neighbours is None else neighbours.shape[1]
    work = rows * cells * (smaller_size + pairs) + queries * smaller_size * (smaller_size + cells) + 8 * smaller_size**3
    limited(work, f"{queries} queries on {rows} design queries over {cells} cells")


def weighting_witness(problem: QueryWeighting, primal: Array, dual: WeightingDual, statement: Parts) -> PrimalAndDual:
    """Return the data that prove the upper and the lower bound."""
    design = statement["design"]
    nonzero_rows = np.any(design, axis=1)
    weights = np.where(np.isfinite(primal), primal, 0.0)[nonzero_rows]
    upper = {
        "weights": np.maximum(weights, MIN_VARIANCE_FACTOR * weights.max()),
        "inverse": _inverse_of_gram(design[nonzero_rows]),
    }
    return upper, {"neighbour_weights": dual.neighbour_weights}


def _inverse_of_gram(design: Array) -> exact.Matrix:
    """Return the inverse of ``Q Q'``, or of ``Q' Q`` if Q has more rows than columns."""
    rows = design if len(design) <= design.shape[1] else design.T
    units = np.linalg.norm(rows, axis=1)
    if not np.all(units > 0):
        raise CertificateError("the answer proves no bound in exact arithmetic: a column of the design is all 0")
    scaled = rows / units[:, None]
    guess = np.linalg.pinv(scaled @ scaled.T, hermitian=True) / np.outer(units, units)
    exact_rows = exactly(rows)
    gram = exact_rows.times(exact_rows.transposed())
    inverse = improved(gram, exactly(guess), WEIGHTING_RESIDUAL_TOL, WEIGHTING_INVERSE_BITS)
    if sum(exact.departure(gram, inverse).squares()) >= 1:
        raise CertificateError(
            "the answer proves no bound in exact arithmetic: the design has dependent rows and dependent columns"
        )
    return inverse


# Strategies of local privacy with columns that sum to 1 exactly, and ratios that are certainly at most e^ε.


def summing_to_one(strategy: Array) -> Matrix:
    """Return a strategy with columns that sum to exactly 1, by a correction of the row with the largest minimum."""
    if not np.all(np.isfinite(strategy)):
        raise CertificateError("the answer proves no bound in exact arithmetic: its strategy is not finite")
    matrix = exactly(strategy)
    if matrix.exponent > 0:
        matrix = Matrix([[entry << matrix.exponent for entry in row] for row in matrix.rows], 0)
    largest_row = int(np.argmax(strategy.min(axis=1)))
    for column in range(strategy.shape[1]):
        difference = (1 << -matrix.exponent) - sum(row[column] for row in matrix.rows)
        matrix.rows[largest_row][column] += difference
    return matrix


def mixed(strategy: Array, other: Array, epsilon: float) -> Array:
    """Return a mixture with a strictly feasible strategy, so that rounding errors violate no limit."""
    share = 16 * (sum(strategy.shape) + 2) * EPS / -np.expm1(-epsilon)
    return np.asarray((1 - share) * strategy + share * other)

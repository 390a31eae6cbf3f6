"""Data that prove both bounds for local privacy: strategies, non-negative estimates and projections."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import numpy as np

from dualmech.crosscheck.proofs import noise
from dualmech.crosscheck.proofs.checker.exact import Matrix, dot
from dualmech.crosscheck.proofs.checker.local import MAX_TYPES
from dualmech.crosscheck.proofs.noise import mixed, summing_to_one
from dualmech.crosscheck.proofs.texts import Parts, PrimalAndDual, exactly
from dualmech.errors import CertificateError, InvalidInputError
from dualmech.linalg import EPS
from dualmech.problems.base import Problem
from dualmech.problems.local.estimate import EstimateDual, NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection, ProjectionDual
from dualmech.problems.local.strategy import LocalDual, LocalStrategy
from dualmech.validate import Array

RESPONSE_SHARE = 1e-10
"""Share of randomised response mixed into a strategy without full column rank."""

RESIDUAL_TOL = Fraction(1, 2**80)  # for ``|B Q - I|``


def refuse_large(problem: Problem, statement: Parts) -> None:
    """Refuse a problem with too many user types (all sets are enumerated) or queries."""
    queries, types = statement["workload"].shape
    if types > MAX_TYPES:
        raise InvalidInputError(
            f"an exact proof enumerates all sets of at most {MAX_TYPES} user types, got {types}; the "
            "certificate in floating point has no such limit"
        )
    noise.limited(queries * types**3, f"{queries} queries on {types} user types")


def witness(problem: LocalStrategy, primal: Array, dual: LocalDual, statement: Parts) -> PrimalAndDual:
    """Return the data that prove the upper and the lower bound."""
    point = problem.feasible(primal)
    matrix = _with_full_rank(point.strategy[np.any(point.strategy > 0, axis=1)], statement["epsilon"])
    strategy = summing_to_one(mixed(matrix, matrix.mean(axis=1)[:, None], statement["epsilon"]))
    upper = {"strategy": strategy, "reconstruction": _reconstruction(strategy, matrix, point.prior)}
    workload, lower = statement["workload"], {"costs": dual.costs}
    if statement["prior"] is None:
        centres = workload.mean(axis=1)
        if np.linalg.norm(workload - centres[:, None]) <= 1e-14 * np.linalg.norm(workload):
            centres = np.zeros(len(workload))
        workload = workload - centres[:, None]
        # The checker's prior is n times the prior of the certificate.
        prior = problem.user_types * np.asarray(problem.prior if dual.prior is None else dual.prior)
        lower |= {"centres": centres[:, None], "prior": prior}
    # The certificate uses a root ``R = O W`` with ``R'R = W'W``: its Z becomes ``Z O`` for W.
    rotation = problem.root @ np.linalg.pinv(workload)
    return upper, lower | {"matrix": dual.matrix @ rotation}


def _with_full_rank(strategy: Array, epsilon: float) -> Array:
    """Return a strategy, mixed with randomised response if its column rank is deficient."""
    sizes = np.linalg.svd(strategy / np.sqrt(strategy.sum(axis=1))[:, None], compute_uv=False)
    types = strategy.shape[1]
    if len(sizes) == types and sizes[-1] > 1e-6 * sizes[0]:
        return strategy
    response = 1 + np.expm1(epsilon) * np.eye(types)
    return np.vstack([(1 - RESPONSE_SHARE) * strategy, RESPONSE_SHARE * response / response.sum(axis=0)])


def _reconstruction(exact_strategy: Matrix, strategy: Array, prior: Array) -> Matrix:
    """Return the minimum-variance B with ``B Q ≈ I``, improved by Newton steps ``B - (B Q - I) B``."""
    scale = np.sqrt(strategy @ prior)
    scale = np.where(scale > 0, scale, np.sqrt(strategy.mean(axis=1)))
    guess = np.linalg.pinv(strategy / scale[:, None], rcond=1e-15) / scale
    if not np.all(np.isfinite(guess)):
        raise CertificateError("the answer proves no bound in exact arithmetic: its strategy has no reconstruction")
    return noise.improved(exact_strategy.transposed(), exactly(guess.T), RESIDUAL_TOL).transposed()


# Non-negative estimates: the estimate, and a residual without a negative slope.


Numbers = list[Fraction]

MAX_PROJECTED_COLUMNS = 64  # for the projection of a residual in exact arithmetic


def refuse_large_estimate(problem: Problem, statement: Parts) -> None:
    """Refuse a problem whose proof needs too many multiplications to check."""
    queries, cells = statement["workload"].shape
    noise.limited(50 * queries * cells, f"{queries} queries on {cells} cells")


def estimate_witness(
    problem: NonnegativeEstimate, primal: Array, dual: EstimateDual, statement: Parts
) -> PrimalAndDual:
    """Return the data that prove the upper and the lower bound."""
    estimate = np.asarray(problem.feasible(primal))
    if not estimate.any():
        estimate = estimate + (statement["total"] == 0)  # any non-zero estimate, since it is scaled by the total 0
    residual = np.asarray(dual.residual, dtype=np.float64)
    without_total = statement["total"] is None
    return {"estimate": estimate}, {
        "residual": _without_negative_slopes(statement["workload"], residual) if without_total else residual
    }


def _without_negative_slopes(workload: Array, residual: Array) -> list[int]:
    """Return integers in a direction near the residual, with non-negative products with all columns.

    A multiple of the combination of queries that is nearest to 1 in every cell is added first. Cells whose products
    stay negative (if columns cancel) need a product of exactly 0: the residual is projected on the orthogonal
    complement of their columns.
    """
    columns = [[Fraction(number) for number in column] for column in workload.T.tolist()]
    ones = np.ones(workload.shape[1])
    lift = [Fraction(float(number)) for number in np.linalg.lstsq(workload.T, ones, rcond=None)[0]]
    slopes, zero_cells = [Fraction(number) for number in residual.tolist()], set[int]()
    for _ in range(len(columns) + 1):
        candidate = _lifted(columns, slopes, lift)
        negative_cells = {cell for cell, column in enumerate(columns) if dot(column, candidate) < 0}
        if not negative_cells:
            denominator = lcm(*(number.denominator for number in candidate))
            return [int(number * denominator) for number in candidate]
        zero_cells |= negative_cells
        if len(zero_cells) > MAX_PROJECTED_COLUMNS:
            break
        zero_columns = [columns[cell] for cell in sorted(zero_cells)]
        slopes, lift = _projected(zero_columns, slopes), _projected(zero_columns, lift)
    raise CertificateError(
        "the answer proves no bound in exact arithmetic: its residual has negative products with the workload"
    )


def _lifted(columns: list[Numbers], point: Numbers, lift: Numbers) -> Numbers:
    """Return the point plus the smallest multiple of `lift` that makes all slopes that it raises non-negative."""
    multiple = Fraction(0)
    for column in columns:
        slope, gain = dot(column, point), dot(column, lift)
        if slope < 0 < gain:
            multiple = max(multiple, -slope / gain)
    return [entry + multiple * rise for entry, rise in zip(point, lift, strict=True)]


def _projected(columns: list[Numbers], point: Numbers) -> Numbers:
    """Return the projection of a point on the orthogonal complement of the columns, exactly."""
    basis: list[Numbers] = []
    for column in columns:
        direction = _orthogonal_part(basis, column)
        if any(direction):
            basis.append(direction)
    return _orthogonal_part(basis, point)


def _orthogonal_part(basis: list[Numbers], point: Numbers) -> Numbers:
    """Return a point less its projections on mutually orthogonal directions."""
    for direction in basis:
        share = dot(direction, point) / dot(direction, direction)
        if share:
            point = [entry - share * step for entry, step in zip(point, direction, strict=True)]
    return point


# Projection onto local strategies: a strategy within its limits, and multipliers.


def refuse_large_projection(problem: Problem, statement: Parts) -> None:
    """Refuse a problem whose proof needs too many multiplications to check."""
    outputs, types = statement["matrix"].shape
    noise.limited(500 * outputs * types, f"{outputs} outputs and {types} user types")


def projection_witness(
    problem: LocalProjection, primal: Array, dual: ProjectionDual, statement: Parts
) -> PrimalAndDual:
    """Return the data that prove the upper and the lower bound."""
    strategy, floor = problem.feasible(primal), statement["floor"]
    interior = strategy.mean(axis=1) if floor is None else floor / floor.sum()
    matrix = summing_to_one(mixed(strategy, interior[:, None], statement["epsilon"]))
    lower = {"sums": dual.sums}
    if floor is None:
        ratios = np.zeros_like(strategy) if dual.ratios is None else dual.ratios
        lower["ratios"] = _balanced(ratios, problem.growth)
    return {"strategy": matrix}, lower


def _balanced(ratios: Array, growth: float) -> Array:
    """Return multipliers with negative entries scaled down so that each row is feasible despite rounding."""
    positive, negative = np.maximum(ratios, 0.0), np.maximum(-ratios, 0.0)
    positive_sums, scaled_negative_sums = positive.sum(axis=1), growth * negative.sum(axis=1)
    shares = np.minimum(
        1.0,
        np.divide(positive_sums, scaled_negative_sums, out=np.ones_like(positive_sums), where=scaled_negative_sums > 0),
    )
    slack = 1 - 8 * (ratios.shape[1] + 4) * EPS
    return np.asarray(positive - (slack * shares)[:, None] * negative)

"""The numbers that show both bounds of local privacy: of strategies, non-negative estimates and projections."""

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

ALONE = 1e-10
"""Share of randomised response mixed into a strategy that cannot tell all user types from each other."""

CLOSE = Fraction(1, 2**80)  # largest rest of ``B Q - I``


def refuse_large(problem: Problem, stated: Parts) -> None:
    """Refuse more user types than a check of all sets allows, and too many queries."""
    queries, types = stated["workload"].shape
    if types > MAX_TYPES:
        raise InvalidInputError(
            f"a proof in whole numbers looks at all sets of user types, of {MAX_TYPES} at most, got {types}; the "
            "certificate in floating point has no such limit"
        )
    noise.limited(queries * types**3, f"{queries} queries on {types} user types")


def witness(problem: LocalStrategy, primal: Array, dual: LocalDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    point = problem.feasible(primal)
    chosen = _telling_all_apart(point.strategy[np.any(point.strategy > 0, axis=1)], stated["epsilon"])
    strategy = summing_to_one(mixed(chosen, chosen.mean(axis=1)[:, None], stated["epsilon"]))
    upper = {"strategy": strategy, "reconstruction": _reconstruction(strategy, chosen, point.prior)}
    workload, lower = stated["workload"], {"costs": dual.costs}
    if stated["prior"] is None:
        centres = workload.mean(axis=1)
        if np.linalg.norm(workload - centres[:, None]) <= 1e-14 * np.linalg.norm(workload):
            centres = np.zeros(len(workload))
        workload = workload - centres[:, None]
        # The checker's prior is n times the judge's.
        prior = problem.user_types * np.asarray(problem.prior if dual.prior is None else dual.prior)
        lower |= {"centres": centres[:, None], "prior": prior}
    # The judge's root is ``R = O W`` with ``R'R = W'W``: with ``Z O`` in place of Z, W takes the place of R.
    turn = problem.root @ np.linalg.pinv(workload)
    return upper, lower | {"matrix": dual.matrix @ turn}


def _telling_all_apart(strategy: Array, epsilon: float) -> Array:
    """Return a strategy mixed with randomised response where it does not tell all user types from each other."""
    sizes = np.linalg.svd(strategy / np.sqrt(strategy.sum(axis=1))[:, None], compute_uv=False)
    types = strategy.shape[1]
    if len(sizes) == types and sizes[-1] > 1e-6 * sizes[0]:
        return strategy
    response = 1 + np.expm1(epsilon) * np.eye(types)
    return np.vstack([(1 - ALONE) * strategy, ALONE * response / response.sum(axis=0)])


def _reconstruction(whole: Matrix, strategy: Array, prior: Array) -> Matrix:
    """Return B with ``B Q`` next to I, of least expected variance, improved by Newton's steps ``B - (B Q - I) B``."""
    scale = np.sqrt(strategy @ prior)
    scale = np.where(scale > 0, scale, np.sqrt(strategy.mean(axis=1)))
    guess = np.linalg.pinv(strategy / scale[:, None], rcond=1e-15) / scale
    if not np.all(np.isfinite(guess)):
        raise CertificateError("the answer shows nothing in whole numbers: its strategy has no reconstruction")
    return noise.improved(whole.transposed(), exactly(guess.T), CLOSE).transposed()


# Non-negative estimates: the estimate, and a residual without a negative slope.


Numbers = list[Fraction]

MOST_SOLVED = 64  # columns up to which a residual is made orthogonal to them in fractions


def refuse_large_estimate(problem: Problem, stated: Parts) -> None:
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    queries, cells = stated["workload"].shape
    noise.limited(50 * queries * cells, f"{queries} queries on {cells} cells")


def estimate_witness(problem: NonnegativeEstimate, primal: Array, dual: EstimateDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    estimate = np.asarray(problem.feasible(primal))
    if not estimate.any():
        estimate = estimate + (stated["total"] == 0)  # any data will do, all of it weighed by nothing
    residual = np.asarray(dual.residual, dtype=np.float64)
    free = stated["total"] is None
    return {"estimate": estimate}, {
        "residual": _without_negative_slopes(stated["workload"], residual) if free else residual
    }


def _without_negative_slopes(workload: Array, residual: Array) -> list[int]:
    """Return whole numbers in a direction near the residual, with no negative product with any column.

    First the combination of queries that is nearest to 1 in every cell is added, as often as needed. Cells that
    nothing lifts, as where columns cancel, need a product of exactly 0: the residual is projected off their columns.
    """
    columns = [[Fraction(number) for number in column] for column in workload.T.tolist()]
    ones = np.ones(workload.shape[1])
    lift = [Fraction(float(number)) for number in np.linalg.lstsq(workload.T, ones, rcond=None)[0]]
    slopes, still = [Fraction(number) for number in residual.tolist()], set[int]()
    for _ in range(len(columns) + 1):
        lifted = _lifted(columns, slopes, lift)
        low = {cell for cell, column in enumerate(columns) if dot(column, lifted) < 0}
        if not low:
            whole = lcm(*(number.denominator for number in lifted))
            return [int(number * whole) for number in lifted]
        still |= low
        if len(still) > MOST_SOLVED:
            break
        held = [columns[cell] for cell in sorted(still)]
        slopes, lift = _projected(held, slopes), _projected(held, lift)
    raise CertificateError("the answer shows nothing in whole numbers: slopes of its residual stay negative")


def _lifted(columns: list[Numbers], point: Numbers, lift: Numbers) -> Numbers:
    """Return the given numbers with as much of a lift as negative slopes need where the lift is positive."""
    most = Fraction(0)
    for column in columns:
        slope, gain = dot(column, point), dot(column, lift)
        if slope < 0 < gain:
            most = max(most, -slope / gain)
    return [entry + most * rise for entry, rise in zip(point, lift, strict=True)]


def _projected(columns: list[Numbers], point: Numbers) -> Numbers:
    """Return the given numbers less their projection on the span of columns, exactly."""
    basis: list[Numbers] = []
    for column in columns:
        left = _off(basis, column)
        if any(left):
            basis.append(left)
    return _off(basis, point)


def _off(basis: list[Numbers], point: Numbers) -> Numbers:
    """Return the given numbers less their projections on directions that are orthogonal to each other."""
    for direction in basis:
        share = dot(direction, point) / dot(direction, direction)
        if share:
            point = [entry - share * step for entry, step in zip(point, direction, strict=True)]
    return point


# Projection onto local strategies: a strategy within its limits, and multipliers.


def refuse_large_projection(problem: Problem, stated: Parts) -> None:
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    outputs, types = stated["matrix"].shape
    noise.limited(500 * outputs * types, f"{outputs} outputs and {types} user types")


def projection_witness(problem: LocalProjection, primal: Array, dual: ProjectionDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    strategy, floor = problem.feasible(primal), stated["floor"]
    inside = strategy.mean(axis=1) if floor is None else floor / floor.sum()
    matrix = summing_to_one(mixed(strategy, inside[:, None], stated["epsilon"]))
    lower = {"sums": dual.sums}
    if floor is None:
        ratios = np.zeros_like(strategy) if dual.ratios is None else dual.ratios
        lower["ratios"] = _balanced(ratios, problem.growth)
    return {"strategy": matrix}, lower


def _balanced(ratios: Array, growth: float) -> Array:
    """Return multipliers whose negative entries are less than their row's positive ones allow, rounding included."""
    positive, negative = np.maximum(ratios, 0.0), np.maximum(-ratios, 0.0)
    gains, taken = positive.sum(axis=1), growth * negative.sum(axis=1)
    shares = np.minimum(1.0, np.divide(gains, taken, out=np.ones_like(gains), where=taken > 0))
    slack = 1 - 8 * (ratios.shape[1] + 4) * EPS
    return np.asarray(positive - (slack * shares)[:, None] * negative)

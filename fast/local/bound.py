"""A bound for many user types: multipliers for which no pattern can break the dual constraints, by a barrier method.

For a given Z, minimise ``1'y`` over costs y and multipliers x of what every proper subset satisfies, such that

    M = T'((y b' + b y')/2 - Z Z')T - Σ_i x_i (a_i c_i' + c_i a_i')/2

is positive semidefinite, ``v_S = T [1; s]``, b = n π: then ``‖Z'v_S‖² ≤ (y'v_S)(b'v_S)`` for every S. Each variable
stands beside one symmetric product of two vectors, so Newton's equations for ``t 1'y - log det M - Σ log x_i`` come
from products of three Gram matrices, and a step takes no longer than factoring a matrix of seven times M's size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import scipy.linalg

from dualmech.geometry.local import patterns
from dualmech.geometry.local.relaxation import Relaxation
from dualmech.problems.local.strategy import LocalDual, LocalStrategy
from dualmech.progress import NEVER, Deadline
from dualmech.validate import Array

GROWTH = 8.0  # factor on t from one centre to the next
STEPS = 150  # Newton steps, at most
CLOSE = 1e-4  # distance from the least costs at which to stop, relative
BISECTIONS = 30  # halvings of the interval that holds the best length of a step
RIDGE = 1e-13  # what is added to the unit diagonal of the Hessian against rounding
NEAR = 0.5  # Newton decrement at which a point counts as central enough


@dataclass(frozen=True, slots=True, eq=False)
class BoundProgram:
    """The variables' vectors, and what stands in M without any of them."""

    # first, second: (n + 1, m) a_i and c_i, those of the costs first, then of the squares, which have no sign, then
    # of the others
    first: Array
    second: Array
    constant: Array  # (n + 1, n + 1) ``-T' Z Z' T``

    @classmethod
    def of(cls, matrix: Array, share: Array, epsilon: float) -> BoundProgram:
        """State the program for Z (n, k)."""
        size, excess = len(matrix), patterns.gain(epsilon)
        corner = np.eye(size + 1)[:, :1]
        each = np.eye(size + 1)[:, 1:]
        count = np.ones((size + 1, 1)) - corner
        lift = np.hstack([np.ones((size, 1)), excess * np.eye(size)])
        half = lift.T @ matrix
        sizes = np.arange(1, size - 1)
        low, high = count - corner, (size - 1) * corner - count
        outside = corner - each
        spread = np.ones((1, size))
        first = [lift.T, -each, -(count - corner * sizes)] + [-low * spread, -high * spread] * 2
        second = [
            (lift.T @ share)[:, None] * spread,
            each - corner,
            count - corner * (sizes + 1),
            each,
            each,
            outside,
            outside,
        ]
        return cls(np.hstack(first), np.hstack(second), -half @ half.T)

    def matrix(self, values: Array) -> Array:
        """Return M."""
        product = (self.first * values) @ self.second.T
        return np.asarray(self.constant + (product + product.T) / 2)


def improve_bound(problem: LocalStrategy, dual: LocalDual, deadline: Deadline = NEVER) -> LocalDual:
    """Return dual weights with the same Z, and the least costs that multipliers prove for it, or that time allows."""
    prior = problem.prior if dual.prior is None else dual.prior
    unit = float(np.linalg.norm(dual.matrix))
    try:
        costs, relaxation = least_relaxed_costs(
            dual.matrix / unit, len(prior) * prior, problem.epsilon, deadline
        )
    except np.linalg.LinAlgError:
        return replace(dual, relaxation=Relaxation.of(len(prior)))
    scaled = {each.name: getattr(relaxation, each.name) * unit**2 for each in fields(relaxation)}
    return replace(dual, costs=costs * unit**2, relaxation=Relaxation(**scaled))


def least_relaxed_costs(
    matrix: Array, share: Array, epsilon: float, deadline: Deadline = NEVER
) -> tuple[Array, Relaxation]:
    """Return the least costs that the multipliers allow for a Z of norm 1, and the multipliers.

    Every point on the way is allowed; when time is up, the last one is returned.
    """
    size = len(share)
    program = BoundProgram.of(matrix, share, epsilon)
    free = 2 * size
    values = _start(program, share)
    price = np.zeros(len(values))
    price[:size] = 1.0
    weight = len(values) / float(values[:size].sum())
    for _ in range(STEPS):
        if deadline.passed:
            break
        change, decrement = _newton(program, values, weight * price, free)
        values = _line_search(program, values, weight * price, change, free)
        if decrement < NEAR:
            if len(values) <= CLOSE * weight * values[:size].sum():
                break
            weight *= GROWTH
    parts = values[size:]
    return values[:size], Relaxation.of(
        size,
        squares=parts[:size],
        sizes=parts[size : 2 * size - 2],
        products=parts[2 * size - 2 :].reshape(4, size),
    )


def _start(program: BoundProgram, share: Array) -> Array:
    """Return costs and multipliers for which M is positive definite.

    Costs in proportion to the share add a multiple of ``T' share share' T``; others may add what is indefinite.
    """
    values, size = np.ones(program.first.shape[1]), len(share)
    values[:size] = share / share.mean()
    largest = -float(np.linalg.eigvalsh(program.constant)[0])
    values[2 * size :] = 1e-3 * largest / size
    values[size : 2 * size] = -2 * largest
    begun = values.copy()
    for stronger in 4.0 ** np.arange(8):
        values = begun.copy()
        values[size : 2 * size] *= stronger
        for _ in range(50):
            if _factor(program.matrix(values)) is not None:
                return values
            values[:size] *= 2
    raise np.linalg.LinAlgError("no costs make the matrix definite")


def _newton(program: BoundProgram, values: Array, slope: Array, free: int) -> tuple[Array, float]:
    """Return the Newton step and its decrement."""
    factor = _factor(program.matrix(values))
    if factor is None:
        raise np.linalg.LinAlgError("the matrix is no longer definite")
    first = scipy.linalg.solve_triangular(factor, program.first, lower=True, check_finite=False)
    second = scipy.linalg.solve_triangular(factor, program.second, lower=True, check_finite=False)
    cross = first.T @ second
    hessian = ((first.T @ first) * (second.T @ second) + cross * cross.T) / 2
    gradient = slope - np.diagonal(cross)
    inverse = np.zeros(len(values))
    inverse[free:] = 1 / values[free:]
    gradient = gradient - inverse
    hessian[np.diag_indices(len(values))] += inverse**2
    scale = 1 / np.sqrt(np.diagonal(hessian))
    scaled = hessian * scale * scale[:, None]
    scaled[np.diag_indices(len(values))] += RIDGE
    solve = scipy.linalg.cho_factor(scaled, overwrite_a=True, check_finite=False)
    change = -scale * scipy.linalg.cho_solve(solve, scale * gradient, check_finite=False)
    return change, float(np.sqrt(max(-gradient @ change, 0.0)))


def _line_search(program: BoundProgram, values: Array, slope: Array, change: Array, free: int) -> Array:
    """Go along a step to where the barrier function is least; along a line it is a sum of logarithms."""
    factor = _factor(program.matrix(values))
    moved = program.matrix(change) - program.constant
    half = scipy.linalg.solve_triangular(factor, moved, lower=True, check_finite=False)
    rates = np.linalg.eigvalsh(scipy.linalg.solve_triangular(factor, half.T, lower=True, check_finite=False))
    rates = np.append(rates, change[free:] / values[free:])
    low, high = 0.0, 0.999 / max(-float(rates.min()), 1e-3)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        rising = float(slope @ change) - float((rates / (1 + middle * rates)).sum()) > 0
        low, high = (low, middle) if rising else (middle, high)
    return values + low * change


def _factor(matrix: Array) -> Array | None:
    try:
        return np.asarray(scipy.linalg.cholesky(matrix, lower=True, check_finite=False))
    except np.linalg.LinAlgError:
        return None

"""Blackboard proofs: an optimum in exact arithmetic, found where it is in fractions with small denominators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dualmech import linalg
from dualmech.crosscheck.optima import surds as exact
from dualmech.crosscheck.optima.surds import Number, Rows
from dualmech.geometry.dense import Dense
from dualmech.problems.base import AnyProblem, Problem
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution
from dualmech.validate import Array

LARGEST_SIZE = 12
"""Largest rank, and half the largest number of cells or queries, for which a proof is sought."""

DISTANCES = (0.25, 1e-1, 3e-2, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-9)
"""How far the fractions that are tried for weights may be from a solver's: several weights can be optimal."""

LOST = 1e-8  # largest part of the optimum that weights may lose to be worth a proof
CLOSE = 1e-8  # largest distance of an entry of the noise, known from exact weights, from the fraction tried for it

FAMILIES = (FitnessForUse, PrivacyFirst, TotalVariance)
"""The problems that have such proofs."""


@dataclass(frozen=True, slots=True)
class ExactProof:
    """Σ, λ, μ and the optimum as exact numbers, with ``Σ Q Σ = scale · P`` and both sides equal, checked exactly.

    For total variance μ stands for its weights.
    """

    covariance: Rows
    neighbour_weights: list[Number]
    query_weights: list[Number]
    scale: Number
    optimum: Number


@dataclass(frozen=True, slots=True)
class FractionProblem:
    """A problem in fractions, in coordinates of the space that neighbours move: there Σ is not singular."""

    moves: Rows  # (r, s) neighbours
    queries: Rows  # (m, r)
    spanning: Rows  # (k, r) independent moves: noise on B x is ``spanning Σ spanning'``
    limits: list[Number] | None  # (m,) targets; None of total variance
    weights: list[Number]  # (m,) those of total variance
    cost: Number | None  # the budget of privacy first, which divides its optimum

    def shares(self, query_weights: list[Number]) -> Number:
        """Return the divisor of the bound: the sum of weights times targets, or 1 for total variance."""
        return Fraction(1) if self.limits is None else exact.dot(query_weights, self.limits)

    def worst(self, sigma: Rows) -> Number:
        """Return the largest variance over its target, or the total variance."""
        variances = [exact.form(sigma, row) for row in self.queries]
        if self.limits is None:
            return exact.dot(self.weights, variances)
        return max(variance / limit for variance, limit in zip(variances, self.limits, strict=True))


def worth_trying(problem: Problem) -> bool:
    """Whether a problem is one about noise on a matrix, and small enough for a blackboard."""
    if not isinstance(problem, FAMILIES):
        return False
    if not isinstance(problem.geometry, Dense) or problem.geometry.rank > LARGEST_SIZE:
        return False
    sizes = (*problem.geometry.workload.shape, problem.geometry.moves.shape[1])
    return max(sizes) <= 2 * LARGEST_SIZE


def on_own_rows(problem: AnyProblem, denominator: int = exact.LARGEST_DENOMINATOR) -> AnyProblem:
    """Return the same problem with noise on independent rows of its workload, None where it is on the cells.

    Orthonormal rows, which are the default where the rank is less than the number of cells, are no fractions.
    """
    rows = exact.exactly(problem.geometry.workload.dense(), denominator)
    if rows is None or linalg.is_identity(problem.geometry.basis):
        return None
    _, chosen = exact.row_echelon(exact.transpose(rows))
    basis = exact.floats([rows[row] for row in chosen])
    return type(problem)(**{**problem.argument_values(), "basis": basis})


def prove(solution: Solution, denominator: int = exact.LARGEST_DENOMINATOR) -> ExactProof | None:
    """Look for an exact proof near a floating-point solution; None where there is none to be found.

    The argument, for ``P = B U diag(λ) U' B'`` and ``Q = L' diag(μ) L``: if ``Σ Q Σ = t P``, then Σ is a
    multiple of the geometric mean of P and the inverse of Q, the trace norm of ``diag(√μ) W U diag(√λ)`` is
    ``tr(Q Σ) / √t``, and its square over ``Σλ Σμc`` bounds α from below without a root to take. Weights are rounded to
    simple fractions, nearly zero ones to 0; noise then follows from them, except where no weighted query sees it; there
    any feasible noise will do. `denominator` is the largest of the problem's own numbers.
    """
    problem = solution.problem
    exact_problem = in_fractions(problem, denominator) if worth_trying(problem) else None
    if exact_problem is None:
        return None
    noise = inner_noise(exact_problem, np.asarray(solution.primal))
    for lam, mu in _weights(exact_problem, solution):
        proof = _from_weights(exact_problem, lam, mu, noise)
        if proof is not None:
            return proof
    return None


def in_fractions(problem: AnyProblem, denominator: int = exact.LARGEST_DENOMINATOR) -> FractionProblem | None:
    geometry, variance = problem.geometry, isinstance(problem, TotalVariance)
    numbers = problem.asked_weights if variance else problem.targets
    first = isinstance(problem, PrivacyFirst)
    spent = problem.cost if first else 1.0
    between = np.eye(geometry.workload.shape[1]) if geometry.neighbours is None else geometry.neighbours
    arrays = (geometry.workload.dense(), geometry.basis, linalg.to_dense(between), numbers, spent)
    parts = [exact.exactly(array, denominator) for array in arrays]
    if any(part is None for part in parts):
        return None
    rows, basis, changes, (vector,), ((cost,),) = (part for part in parts if part is not None)
    queries = exact.on_basis(rows, basis)
    if queries is None:
        return None
    moves = exact.product(basis, changes)
    reduced, chosen = exact.row_echelon(moves)
    spanning = [[row[column] for column in chosen] for row in moves]
    none: list[Number] = [Fraction(0)] * len(vector)
    limits, weights = (None, vector) if variance else (vector, none)
    inside = exact.product(queries, spanning)
    return FractionProblem(reduced[: len(chosen)], inside, spanning, limits, weights, cost if first else None)


def inner_noise(problem: FractionProblem, sigma: Array) -> Array:
    """Return a solver's Σ in the coordinates of the space that neighbours move."""
    left = np.linalg.pinv(exact.floats(problem.spanning))
    return np.asarray(left @ sigma @ left.T)


def _weights(problem: FractionProblem, solution: Solution) -> Iterator[tuple[list[Number], list[Number]]]:
    """Yield weights in fractions that lose next to nothing of the optimum, the simplest first."""
    lam = np.asarray(solution.dual.neighbour_weights)
    tried: set[tuple[Number, ...]] = set()
    for first in DISTANCES:
        for last in DISTANCES if problem.limits is not None else DISTANCES[:1]:
            fractions = exact.simplest(lam / lam.sum(), first)
            shares = _shares(problem, solution, last)
            if (
                fractions is None
                or shares is None
                or not any(fractions[0])
                or (key := (*fractions[0], *shares)) in tried
            ):
                continue
            tried.add(key)
            if _value(problem, fractions[0], shares) >= (1 - LOST) * solution.lower_bound * float(problem.cost or 1):
                yield [weight / sum(fractions[0]) for weight in fractions[0]], shares


def _shares(problem: FractionProblem, solution: Solution, within: float) -> list[Number] | None:
    """Return weights on queries in fractions, rounded as shares of the bill; those of total variance are given."""
    if problem.limits is None:
        return problem.weights
    bill = solution.dual.query_weights * np.array([float(limit) for limit in problem.limits])
    shares = exact.simplest(bill / bill.sum(), within)
    if shares is None or not any(shares[0]):
        return None
    return [share / sum(shares[0]) / limit for share, limit in zip(shares[0], problem.limits, strict=True)]


def _value(problem: FractionProblem, lam: list[Number], mu: list[Number]) -> float:
    """Return the bound that weights prove, in doubles."""
    moves, queries = exact.floats(problem.moves), exact.floats(problem.queries)
    roots = [np.sqrt([float(weight) for weight in weights]) for weights in (mu, lam)]
    norm = linalg.singular_values(roots[0][:, None] * (queries @ moves) * roots[1]).sum()
    return float(norm**2 / float(sum(lam) * problem.shares(mu)))


def _from_weights(problem: FractionProblem, lam: list[Number], mu: list[Number], noise: Array) -> ExactProof | None:
    """Return the proof that weights and the noise that follows from them make, if they make one."""
    p, q = exact.weighted_gram(exact.transpose(problem.moves), lam), exact.weighted_gram(problem.queries, mu)
    mean = _geometric_mean(exact.floats(p), exact.floats(q))
    seen = exact.simplest(mean, CLOSE)
    if seen is None or seen != exact.transpose(seen):
        return None
    free = exact.null_space(q)
    inside = np.linalg.pinv(exact.floats(free)) if free else np.zeros((len(q), 0))
    scaled = noise / max(float(problem.worst(_doubles(noise))), 1e-300)
    rest = inside.T @ (scaled - mean) @ inside
    for within in DISTANCES if free else DISTANCES[:1]:
        sigma = seen
        if free:
            inner = exact.simplest(rest, within * max(np.abs(rest).max(), 1e-300))
            if inner is None or inner != exact.transpose(inner):
                continue
            sigma = exact.total(seen, exact.product(exact.product(exact.transpose(free), inner), free))
        proof = verified(problem, sigma, lam, mu)
        if proof is not None:
            return proof
    return None


def _doubles(matrix: Array) -> Rows:
    return [[Fraction(float(entry)) for entry in row] for row in matrix]


def _geometric_mean(p: Array, q: Array) -> Array:
    """Return the G with ``G Q G ∝ P`` and ``tr(Q G) = 1``, on the range of P."""
    values, vectors = np.linalg.eigh(p)
    root = (vectors * np.sqrt(np.where(values > linalg.EPS * values[-1] * len(p), values, 0.0))) @ vectors.T
    inner, directions = np.linalg.eigh(root @ q @ root)
    kept = inner > 1e-12 * inner[-1]
    powers = np.where(kept, 1 / np.sqrt(np.where(kept, inner, 1.0)), 0.0)
    mean = root @ (directions * powers) @ directions.T @ root
    return np.asarray((mean + mean.T) / 2 / np.sqrt(inner[kept]).sum())


def verified(problem: FractionProblem, sigma: Rows, lam: list[Number], mu: list[Number]) -> ExactProof | None:
    """Return the proof, if both of its sides meet; every comparison is exact."""
    inverse = exact.inverse(sigma)
    if inverse is None or sigma != exact.transpose(sigma) or min(*lam, *mu) < 0:
        return None
    columns = exact.transpose(problem.moves)
    worst = problem.worst(sigma)
    sigma = exact.times(1 / worst, sigma)
    upper = max(exact.form(inverse, column) for column in columns) * worst
    if problem.limits is None:  # the noise that costs 1
        sigma = exact.times(upper, sigma)
    p, q = exact.weighted_gram(columns, lam), exact.weighted_gram(problem.queries, mu)
    left = exact.product(exact.product(sigma, q), sigma)
    pairs = (pair for rows in zip(left, p, strict=True) for pair in zip(*rows, strict=True))
    scale = next((a / b for a, b in pairs if b), None)
    if scale is None or scale <= 0 or left != exact.times(scale, p):
        return None
    traced = sum((m * exact.form(sigma, row) for m, row in zip(mu, problem.queries, strict=True)), Fraction(0))
    if traced**2 / scale / (sum(lam) * problem.shares(mu)) != upper:
        return None
    if problem.cost is not None:  # the noise that costs what may be spent
        upper /= problem.cost
        sigma, scale = exact.times(upper, sigma), upper**2 * scale
    whole = exact.product(exact.product(problem.spanning, sigma), exact.transpose(problem.spanning))
    return ExactProof(whole, lam, mu, scale, upper)

"""Small problems in fractions, and their optima, proven in exact arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dualmech import linalg
from dualmech.certificate import Certificate
from dualmech.crosscheck.optima import surds as exact
from dualmech.crosscheck.optima.surds import Number, Rows, radicals_of
from dualmech.display import Displayed
from dualmech.geometry.dense import Dense
from dualmech.problems.base import AnyProblem, Problem
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.validate import Array

MAX_RANK = 12  # of a problem; it has at most twice as many cells, queries and neighbours

FAMILIES = (FitnessForUse, PrivacyFirst, TotalVariance)
"""The problems with exact proofs."""


Entries = tuple[tuple[Number, ...], ...]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True, eq=False)
class ExactOptimum(Displayed):
    """An exact optimum in fractions and square roots, with optimal noise and weights that prove it.

    Numbers are `fractions.Fraction` or sums of fractions times square roots. They support exact arithmetic and
    comparison with each other and with integers, ``float`` and ``str``.

    Attributes
    ----------
    problem : FitnessForUse, PrivacyFirst or TotalVariance
        The problem, on a matrix; if its basis had orthonormal rows, on independent rows of the workload instead.
    optimum
        The minimum α, κ or total variance.
    covariance : k tuples of k numbers
        The optimal covariance Σ of noise on ``problem.basis`` times x.
    neighbour_weights, query_weights : tuples of s and m numbers
        λ and μ, which prove the lower bound; ``Σ λ_i = Σ μ_j c_j = 1``. For total variance, μ are the given weights.
    scale
        The t of ``Σ Q Σ = t P``, with ``P = B U diag(λ) U' B'`` and ``Q = L' diag(μ) L``.
    """

    problem: AnyProblem
    optimum: Number
    covariance: Entries
    neighbour_weights: tuple[Number, ...]
    query_weights: tuple[Number, ...]
    scale: Number

    @property
    def radicals(self) -> tuple[int, ...]:
        """The radicands of the square roots, in order; empty if all numbers are fractions."""
        numbers = (self.optimum, *self.neighbour_weights, *self.query_weights)
        return radicals_of([*numbers, *(entry for row in self.covariance for entry in row)])

    @property
    def certificate(self) -> Certificate:
        """The certificate of the nearest doubles."""
        lam, mu = ([float(weight) for weight in weights] for weights in (self.neighbour_weights, self.query_weights))
        dual = lam if isinstance(self.problem, TotalVariance) else (lam, mu)
        certificate: Certificate = self.problem.certify(np.array(self.covariance, dtype=float), dual)
        return certificate

    def __float__(self) -> float:
        return float(self.optimum)

    def _facts(self) -> dict[str, object]:
        return {
            "optimum": str(self.optimum),
            "nearly": float(self.optimum),
            "square roots of": self.radicals or "nothing: fractions",
            "neighbour weights": ", ".join(map(str, self.neighbour_weights)),
            "query weights": ", ".join(map(str, self.query_weights)),
        }

    def __repr__(self) -> str:
        return f"ExactOptimum({self.optimum})"


@dataclass(frozen=True, slots=True)
class FractionProblem:
    """A problem in fractions, in coordinates of the span of the neighbours' differences, where Σ is not singular."""

    problem: AnyProblem
    moves: Rows  # (r, s) differences between neighbours
    queries: Rows  # (m, r)
    spanning: Rows  # (k, r) independent differences: noise on B x is ``spanning Σ spanning'``
    limits: list[Number] | None  # (m,) targets; None for total variance
    weights: list[Number]  # (m,) of total variance, else 0
    cost: Number | None  # the budget of privacy first, which divides its optimum

    def shares(self, query_weights: list[Number]) -> Number:
        """Return the divisor of the bound: the sum of weights times targets, or 1 for total variance."""
        return Fraction(1) if self.limits is None else exact.dot(query_weights, self.limits)

    def worst(self, sigma: Rows) -> Number:
        """Return the maximum of variances divided by targets, or the total variance."""
        variances = exact.form(sigma, self.queries)
        if self.limits is None:
            return exact.dot(self.weights, variances)
        return max(variance / limit for variance, limit in zip(variances, self.limits, strict=True))


def worth_trying(problem: Problem) -> bool:
    """Return whether a problem is on a matrix, and small enough for an exact proof."""
    if not isinstance(problem, FAMILIES):
        return False
    if not isinstance(problem.geometry, Dense) or problem.geometry.rank > MAX_RANK:
        return False
    sizes = (*problem.geometry.workload.shape, problem.geometry.moves.shape[1])
    return max(sizes) <= 2 * MAX_RANK


def on_own_rows(problem: AnyProblem) -> AnyProblem:
    """Return the same problem with noise on independent rows of its workload; None if its noise is on the cells.

    Orthonormal rows, the default if the rank is less than the number of cells, are not rational.
    """
    rows = exact.exactly(problem.geometry.workload.dense())
    if rows is None or linalg.is_identity(problem.geometry.basis):
        return None
    _, pivots = exact.row_echelon(rows.T)
    return type(problem)(**{**problem.argument_values(), "basis": rows[pivots].astype(float)})


def in_fractions(problem: AnyProblem) -> FractionProblem | None:
    geometry, variance = problem.geometry, isinstance(problem, TotalVariance)
    numbers = problem.asked_weights if variance else problem.targets
    privacy_first = isinstance(problem, PrivacyFirst)
    budget = problem.cost if privacy_first else 1.0
    differences = np.eye(geometry.workload.shape[1]) if geometry.neighbours is None else geometry.neighbours
    arrays = (geometry.workload.dense(), geometry.basis, linalg.to_dense(differences), numbers, budget)
    parts = [exact.exactly(array) for array in arrays]
    if any(part is None for part in parts):
        return None
    rows, basis, changes, (vector,), ((cost,),) = (part for part in parts if part is not None)
    queries = exact.on_basis(rows, basis)
    if queries is None:
        return None
    moves = basis @ changes
    reduced, pivots = exact.row_echelon(moves)
    spanning, values = moves[:, pivots], vector.tolist()
    zeros: list[Number] = [Fraction(0)] * len(values)
    limits, weights = (None, values) if variance else (values, zeros)
    return FractionProblem(
        problem,
        reduced[: len(pivots)],
        queries @ spanning,
        spanning,
        limits,
        weights,
        cost if privacy_first else None,
    )


def inner_noise(problem: FractionProblem, sigma: Array) -> Array:
    """Return a solver's Σ in coordinates of the span of the neighbours' differences."""
    left = np.linalg.pinv(problem.spanning.astype(float))
    return np.asarray(left @ sigma @ left.T)


def verified(problem: FractionProblem, sigma: Rows, lam: list[Number], mu: list[Number]) -> ExactOptimum | None:
    """Return the proof if both bounds are equal, else None; every comparison is exact.

    For ``P = B U diag(λ) U' B'`` and ``Q = L' diag(μ) L``: if ``Σ Q Σ = t P``, then Σ is a multiple of the geometric
    mean of P and the inverse of Q, the trace norm of ``diag(√μ) W U diag(√λ)`` is ``tr(Q Σ) / √t``, and its square over
    ``Σλ Σμc`` is a rational lower bound on α.
    """
    inverse = exact.inverse(sigma)
    if inverse is None or not np.array_equal(sigma, sigma.T) or min(*lam, *mu) < 0:
        return None
    worst = problem.worst(sigma)
    sigma = sigma / worst
    upper = max(exact.form(inverse, problem.moves.T)) * worst
    if problem.limits is None:  # scale the noise to cost 1
        sigma = sigma * upper
    p, q = exact.weighted_gram(problem.moves.T, lam), exact.weighted_gram(problem.queries, mu)
    left = sigma @ q @ sigma
    scale = next((a / b for a, b in zip(left.ravel(), p.ravel(), strict=True) if b), None)
    if scale is None or scale <= 0 or not np.array_equal(left, p * scale):
        return None
    traced = exact.dot(mu, exact.form(sigma, problem.queries))
    if traced**2 / scale / (sum(lam) * problem.shares(mu)) != upper:
        return None
    if problem.cost is not None:  # scale the noise to the budget
        upper /= problem.cost
        sigma, scale = sigma * upper, upper**2 * scale
    covariance = problem.spanning @ sigma @ problem.spanning.T
    return ExactOptimum(
        problem=problem.problem,
        optimum=upper,
        covariance=tuple(map(tuple, covariance)),
        neighbour_weights=tuple(lam),
        query_weights=tuple(mu),
        scale=scale,
    )

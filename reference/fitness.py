"""Fitness for use as CVXPY programs in the form of the paper: Problems 1, 2 and 3, each in three forms.

Σ (k, k) is the covariance of the noise on B x, the columns of ``BU`` (k, s) are the differences between neighbouring
data sets, the rows v_j of ``L`` (m, k) are the queries on B x, and ``c`` (m,) are the targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import scipy.sparse as sp

from dualmech.problems.base import AnyProblem
from dualmech.problems.fitness import PrivacyFirst
from dualmech.reference import cp
from dualmech.reference.attempts import label
from dualmech.validate import Array


def schur(
    aim: Aim, moves: Array, queries: Array, orbits: tuple[sp.csr_array, sp.csr_array] | None = None
) -> cp.Problem:
    """State a problem with one linear matrix inequality: the noise of minimum cost that meets every target.

    In formulas, Problem 1 is to minimise ``max_i (B u_i)' Σ⁻¹ (B u_i)`` over ``Σ ≻ 0`` subject to ``v_j Σ v_j' ≤ c_j``.
    As a program:

        minimise α over Σ, Z subject to ``[[Σ, BU], [(BU)', Z]] ⪰ 0``, ``Z_ii ≤ α``, ``v_j Σ v_j' ≤ c_j``.

    By the Schur complement the matrix inequality is equivalent to ``Z ⪰ (BU)' Σ⁻¹ (BU)``, whose diagonal contains the
    costs. (If Σ is singular, this holds on the range of Σ, which contains all B u_i.)

    With `orbits` there is one constraint per orbit, on the mean cost of its neighbours and the mean variance of its
    queries. For orbits of a group of symmetries, this is no relaxation. If Σ is feasible, the average of Σ over the
    group is feasible too, because costs are convex in Σ; and there all members of an orbit are equal. Targets are equal
    within orbits, so their means are the limits.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
    >>> program = schur(accuracy_first(problem.targets), problem.geometry.moves, problem.geometry.representation)
    >>> value, Sigma = program.solve(solver="CLARABEL"), program.var_dict["Sigma"].value
    >>> weights = [constraint.dual_value for constraint in program.constraints[1:]]
    >>> problem.certify(problem.feasible(Sigma), problem.dual_type(*weights)).gap < 1e-6, round(value, 6)
    (True, 1.333333)
    """
    BU, L = cp.Constant(moves, name="BU"), cp.Constant(queries, name="L")
    Sigma, Z = symmetric("Sigma", moves.shape[0]), symmetric("Z", moves.shape[1])
    costs, query_variances, limits = cp.diag(Z), variances(L, Sigma), aim.variance_limits
    if orbits is not None:
        mean_cost, mean_variance = orbits
        costs, query_variances, limits = mean_cost @ costs, mean_variance @ query_variances, mean_variance @ limits
    return cp.Problem(
        cp.Minimize(aim.minimise),
        [
            label("schur", cp.bmat([[Sigma, BU], [BU.T, Z]]) >> 0),
            label("privacy", costs <= aim.cost_limit),
            label("accuracy", query_variances <= limits),
        ],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Aim:
    """The objective, and the limits on cost and variances."""

    minimise: cp.Expression  # the objective
    cost_limit: cp.Expression  # upper limit on ``(B u_i)' Σ⁻¹ (B u_i)`` for every pair of neighbours
    variance_limits: cp.Expression  # upper limits on ``v_j Σ v_j'``, (m,)

    @property
    def optimum(self) -> float:
        """The optimum from a solved program: α, κ, or in Problem 3 their product; NaN before it is solved."""
        values = [variable.value for variable in self.minimise.variables()]
        return math.prod(math.nan if value is None else float(value) for value in values)


def accuracy_first(targets: Array) -> Aim:
    """Problem 1: minimise α, with cost at most α and variances at most c."""
    alpha = cp.Variable(name="alpha")
    return Aim(alpha, alpha, cp.Constant(targets, name="c"))


def privacy_first(targets: Array, cost: float) -> Aim:
    """Problem 2: minimise κ, with cost at most the budget and variances at most κ c."""
    kappa = cp.Variable(name="kappa")
    return Aim(kappa, cp.Constant(cost, name="cost"), kappa * cp.Constant(targets, name="c"))


def sum_of_both(targets: Array) -> Aim:
    """Problem 3 (equation 7): minimise α + κ, with cost at most α and variances at most κ c.

    The objective is ``max_i (B u_i)' Σ⁻¹ (B u_i) + max_j v_j Σ v_j' / c_j``. Scaling Σ by γ > 0 changes the
    terms to ``α/γ + γκ``, whose minimum ``2 √(α κ)`` is attained if both are equal. So an optimal Σ has the minimum
    product α κ, which is invariant under scaling, and ``Σ / κ`` solves Problem 1 with value α κ.
    """
    alpha, kappa = cp.Variable(name="alpha"), cp.Variable(name="kappa")
    return Aim(alpha + kappa, alpha, kappa * cp.Constant(targets, name="c"))


def aim_of(problem: AnyProblem, targets: Array, cost: float | None = None) -> Aim:
    """Return the aim of a problem with given targets and, for `PrivacyFirst`, a cost in given units."""
    if isinstance(problem, PrivacyFirst):
        return privacy_first(targets, problem.cost if cost is None else cost)
    return accuracy_first(targets)


def matrix_frac(aim: Aim, moves: Array, queries: Array) -> cp.Problem:
    """State a problem with one fractional constraint per pair of neighbours, as in the paper."""
    BU, L = cp.Constant(moves, name="BU"), cp.Constant(queries, name="L")
    Sigma = symmetric("Sigma", moves.shape[0])
    costs = [cp.matrix_frac(BU[:, i], Sigma) for i in range(moves.shape[1])]
    return cp.Problem(
        cp.Minimize(aim.minimise),
        [
            *[label(f"privacy[{i}]", cost <= aim.cost_limit) for i, cost in enumerate(costs)],
            label("accuracy", variances(L, Sigma) <= aim.variance_limits),
        ],
    )


def logdet(aim: Aim, moves: Array, queries: Array, sharpness: float) -> cp.Problem:
    """State the centring problem of an interior-point method, with logarithms in place of the inequalities.

    For Problem 1 and the sharpness t > 0 this is, divided by t,

        minimise ``t α − Σ_i log(α − b_i' Σ⁻¹ b_i) − Σ_j log(c_j − v_j Σ v_j') − log det Σ``,

    with b_i the columns of BU. For an interior-point method, the terms of the first sum are ``log det [[α, b_i'], [b_i,
    Σ]] = log det Σ + log(α − b_i' Σ⁻¹ b_i)``. With s such determinants, log det Σ would be counted s times, and the
    subtraction of s − 1 of them is not convex term by term. Here log det Σ occurs once. Slack variables p (s,) and q
    (m,) replace the differences:

        minimise ``α − (Σ_i log p_i + Σ_j log q_j + log det Σ) / t`` subject to
        ``[[Σ, BU], [(BU)', Z]] ⪰ 0``, ``Z_ii + p_i ≤ α``, ``v_j Σ v_j' + q_j ≤ c_j``.

    Proof that the two are equivalent. The logarithm increases, so for fixed (α, Σ) the slacks are as large as possible:
    ``q_j = c_j − v_j Σ v_j'`` and ``p_i = α − Z_ii``; and the diagonal of Z is as small as possible. Since
    ``Z ⪰ (BU)' Σ⁻¹ (BU)``, that diagonal is the diagonal of ``(BU)' Σ⁻¹ (BU)``. This gives the first form. Every term
    is convex by CVXPY's rules: a linear objective, minus logarithms of variables, minus log det Σ, under linear
    constraints and one cone.

    Proof of the bound ``(s + m + k)/t``. At the minimiser (α°, Σ°) put ``λ_i = 1 / (t p_i)`` and
    ``μ_j = 1 / (t q_j)``, the multipliers of the two constraints, and ``Ω = Σ°⁻¹ / t``. The Lagrangian
    ``α + Σ_i λ_i (b_i' Σ⁻¹ b_i − α) + Σ_j μ_j (v_j Σ v_j' − c_j) − ⟨Ω, Σ⟩`` is convex, and its gradient at
    (α°, Σ°) equals the gradient of the first form above, over t, hence 0: there it is minimal, with the value
    ``α° − s/t − m/t − k/t``, since every multiplier times its slack is 1/t and ``⟨Σ°⁻¹, Σ°⟩ = k``. At a
    feasible (α, Σ) it is at most α, since every other term is ≤ 0. So no feasible α is below that value.

    For Problem 2 the objective is κ. The parameter 1/t may be changed in place.
    """
    BU, L = cp.Constant(moves, name="BU"), cp.Constant(queries, name="L")
    Sigma, Z = symmetric("Sigma", moves.shape[0]), symmetric("Z", moves.shape[1])
    p, q = cp.Variable(moves.shape[1], name="p"), cp.Variable(len(queries), name="q")
    barrier = -cp.sum(cp.log(p)) - cp.sum(cp.log(q)) - cp.log_det(Sigma)
    inverse_sharpness = cp.Parameter(nonneg=True, name="1/t", value=1 / sharpness)
    return cp.Problem(
        cp.Minimize(aim.minimise + inverse_sharpness * barrier),
        [
            label("schur", cp.bmat([[Sigma, BU], [BU.T, Z]]) >> 0),
            label("privacy", cp.diag(Z) + p <= aim.cost_limit),
            label("accuracy", variances(L, Sigma) + q <= aim.variance_limits),
        ],
    )


PROGRAMS: dict[str, Callable[..., cp.Problem]] = {
    "schur": schur,
    "matrix_frac": matrix_frac,
    "logdet": logdet,
    "sum": schur,
}


def variances(L: cp.Expression, Sigma: cp.Expression) -> cp.Expression:
    """Return ``diag(L Σ L')``, the row sums of ``(L Σ) ∘ L``: the off-diagonal entries are never formed."""
    return cp.sum(cp.multiply(L @ Sigma, L), axis=1)


def symmetric(name: str, size: int) -> cp.Variable:
    return cp.Variable((size, size), symmetric=True, name=name)

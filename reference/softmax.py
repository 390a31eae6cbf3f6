"""Problem 4 and its hybrid through CVXPY: stated with exponential cones, handed to a backend, repaired and judged.

Σ (k, k) is the covariance of the noise on B x, ``BU`` (k, s) holds the moves between neighbouring data sets in
its columns, ``L`` (m, k) the queries on B x in its rows v_j, and ``c`` (m,) the targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import cvxpy as cp
import numpy as np

from dualmech.errors import BackendError
from dualmech.geometry.base import valid_weights
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.reference import attempts
from dualmech.reference.scaling import Scaled
from dualmech.reference.statements import label, variances
from dualmech.validate import Array

CONES = frozenset({"PSD", "ExpCone"})


@dataclass(frozen=True, slots=True, eq=False)
class Smoothing:
    """What Problem 4 has beside the arrays: targets c, sharpness t₁ and t₂, total weight w."""

    targets: Array
    t1: float
    t2: float
    total_weight: float


def _write(problem: SoftmaxFitness, formulation: str) -> cp.Problem:
    smoothing = Smoothing(problem.targets, problem.t1, problem.t2, problem.total_weight)
    return STATEMENTS[formulation](problem.geometry.moves, problem.geometry.representation, smoothing)


def _read(problem: SoftmaxFitness, formulation: str, request: attempts.BackendRequest) -> attempts.Readout:
    scaled, program = _scaled_program(problem, formulation)
    return attempts.Readout(
        program,
        scaled,
        covariance=lambda: program.var_dict["Sigma"].value,
        dual=partial(_dual, scaled, program),
        constraints=("privacy", "accuracy"),
    )


def schur(moves: Array, queries: Array, smoothing: Smoothing) -> cp.Problem:
    """State Equation 8 with one linear matrix inequality.

    ``[[Σ, BU], [(BU)', Z]] ⪰ 0`` says that ``Z ⪰ (BU)' Σ⁻¹ (BU)``, on whose diagonal the costs stand.
    """
    BU = cp.Constant(moves, name="BU")
    Sigma = cp.Variable((len(moves), len(moves)), symmetric=True, name="Sigma")
    Z = cp.Variable((moves.shape[1], moves.shape[1]), symmetric=True, name="Z")
    objective, limits = _smoothed_objective(cp.diag(Z), Sigma, queries, smoothing)
    return cp.Problem(objective, [label("schur", cp.bmat([[Sigma, BU], [BU.T, Z]]) >> 0), *limits])


def matrix_frac(moves: Array, queries: Array, smoothing: Smoothing) -> cp.Problem:
    """State Equation 8 as it stands, with each cost a matrix fraction."""
    BU = cp.Constant(moves, name="BU")
    Sigma = cp.Variable((len(moves), len(moves)), symmetric=True, name="Sigma")
    costs = cp.hstack([cp.matrix_frac(BU[:, i], Sigma) for i in range(moves.shape[1])])
    objective, limits = _smoothed_objective(costs, Sigma, queries, smoothing)
    return cp.Problem(objective, limits)


def _smoothed_objective(
    costs: cp.Expression, Sigma: cp.Variable, queries: Array, smoothing: Smoothing
) -> tuple[cp.Minimize, list[cp.Constraint]]:
    """Return the objective over limits g on the costs and h on the variances, and these limits.

    A soft max grows with every exponent, so g and h are the costs and the ratios themselves at the optimum. The
    limits are there for their multipliers: the derivatives of the soft maxima, that is, the weights λ and μ.
    """
    L, c = cp.Constant(queries, name="L"), cp.Constant(smoothing.targets, name="c")
    t1, t2, w = smoothing.t1, smoothing.t2, smoothing.total_weight
    g, h = cp.Variable(costs.shape, name="g"), cp.Variable(len(queries), name="h")
    objective = cp.log_sum_exp(t1 * g) / t1 + cp.log_sum_exp(t2 * h) / t2 + w * cp.sum(variances(L, Sigma))
    return cp.Minimize(objective), [
        label("privacy", costs <= g),
        label("accuracy", variances(L, Sigma) / c <= h),
    ]


STATEMENTS = {"schur": schur, "matrix_frac": matrix_frac}

STATEMENT = attempts.Statement(lambda _: dict.fromkeys(STATEMENTS, CONES), _write, _read)


def _scaled_program(problem: SoftmaxFitness, formulation: str) -> tuple[Scaled, cp.Problem]:
    """Return the program in units in which both maxima are near 1, and the units.

    With ``unit = α``, roughly, and Σ in units of √α, costs and variances are both in units of √α, and so is F;
    t₁ and t₂ are then times √α. A neighbour or query that was left out is put back: its exponent 0 counts.
    """
    balanced = Scaled.of(problem.accuracy_first)
    unit = balanced.unit**0.5
    scaled = replace(balanced, problem=problem, lift=balanced.lift * unit**0.5, unit=unit)
    rank = scaled.sizes[2]
    moves, queries = np.zeros((rank, problem.geometry.moves.shape[1])), np.zeros((len(problem.targets), rank))
    moves[:, scaled.kept_moves] = scaled.moves
    queries[scaled.kept_queries] = scaled.queries
    queries *= np.sqrt(problem.targets)[:, None]
    smoothing = Smoothing(problem.targets, problem.t1 * unit, problem.t2 * unit, problem.total_weight)
    return scaled, STATEMENTS[formulation](moves, queries, smoothing)


def _dual(scaled: Scaled, program: cp.Problem, privacy: Array, accuracy: Array) -> SoftmaxDual:
    """Return the better weights of two: the soft max weights of the repaired covariance, or the multipliers.

    Both are optimal at the optimum. The first are nearer to it, unless the soft max is so sharp that an error of
    the backend turns them over.
    """
    problem = scaled.problem
    try:
        covariance = scaled.covariance(program.var_dict["Sigma"].value)
    except BackendError:
        # Whoever reads Σ next meets the same error; where it is excused, the run is judged where it began.
        covariance = scaled.covariance(np.eye(scaled.sizes[2]))
        began: SoftmaxDual = problem.dual_at(covariance)
        return began
    weights: SoftmaxDual = problem.dual_at(covariance)
    first, last = np.maximum(privacy, 0.0), np.maximum(accuracy, 0.0)
    if not (valid_weights(first) and valid_weights(last)):
        return weights
    multipliers = SoftmaxDual(first / first.sum(), last / last.sum())
    return max(weights, multipliers, key=lambda dual: problem.certify(covariance, dual).lower_bound)

"""Problem 4 and its hybrid through CVXPY, with exponential cones.

Σ (k, k) is the covariance of the noise on B x, the columns of ``BU`` (k, s) are the differences between neighbouring
data sets, the rows v_j of ``L`` (m, k) are the queries on B x, and ``c`` (m,) are the targets.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from dualmech.errors import BackendError
from dualmech.geometry.weights import valid_weights
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.reference import attempts, cp
from dualmech.reference.attempts import label
from dualmech.reference.fitness import symmetric, variances
from dualmech.reference.formulas import noise as formulas
from dualmech.reference.scaling import Scaled
from dualmech.validate import Array

CONES = frozenset({"PSD", "ExpCone"})


def smoothed(
    formulation: str, arrays: tuple[Array, Array, Array], sharpness: tuple[float, float], total_weight: float = 0.0
) -> cp.Problem:
    """State Equation 8 over `arrays` BU, L and c: soft maxima of all costs and of all ratios, and w times the total.

    In formulas: minimise ``log(Σ_i exp(t₁ b_i' Σ⁻¹ b_i)) / t₁ + log(Σ_j exp(t₂ v_j Σ v_j' / c_j)) / t₂ + w Σ_j v_j Σ
    v_j'`` over ``Σ ≻ 0``, b_i the columns of BU. As a program:

        minimise ``log(Σ_i exp(t₁ g_i)) / t₁ + log(Σ_j exp(t₂ h_j)) / t₂ + w Σ_j v_j Σ v_j'`` over Σ, Z, g and h
        subject to ``[[Σ, BU], [(BU)', Z]] ⪰ 0``, ``Z_ii ≤ g_i``, ``v_j Σ v_j' / c_j ≤ h_j``.

    The matrix inequality is equivalent to ``Z ⪰ (BU)' Σ⁻¹ (BU)``, whose diagonal contains the costs; ``matrix_frac``
    has each cost as a matrix fraction instead. A soft maximum increases with every exponent, so at the optimum g and h
    equal the costs and ratios. The multipliers of their constraints are the derivatives of the soft maxima, the dual
    weights.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.SoftmaxFitness(dm.workloads.prefix(2), targets=1.0, t1=5.0, t2=5.0)
    >>> arrays = problem.geometry.moves, problem.geometry.representation, problem.targets
    >>> program = smoothed("schur", arrays, (5.0, 5.0))
    >>> _, Sigma = program.solve(solver="CLARABEL"), program.var_dict["Sigma"].value
    >>> weights = [constraint.dual_value for constraint in program.constraints[1:]]
    >>> problem.certify(Sigma, problem.dual_type(*weights)).gap < 1e-6
    True
    """
    BU, L, c = (cp.Constant(array, name=name) for array, name in zip(arrays, ("BU", "L", "c"), strict=True))
    t1, t2 = sharpness
    Sigma, Z, schur = symmetric("Sigma", BU.shape[0]), symmetric("Z", BU.shape[1]), formulation == "schur"
    costs = cp.diag(Z) if schur else cp.hstack([cp.matrix_frac(b, Sigma) for b in arrays[0].T])
    cone = [label("schur", cp.bmat([[Sigma, BU], [BU.T, Z]]) >> 0)] if schur else []
    g, h = cp.Variable(BU.shape[1], name="g"), cp.Variable(L.shape[0], name="h")
    objective = cp.log_sum_exp(t1 * g) / t1 + cp.log_sum_exp(t2 * h) / t2
    return cp.Problem(
        cp.Minimize(objective + total_weight * cp.sum(variances(L, Sigma))),
        [*cone, label("privacy", costs <= g), label("accuracy", variances(L, Sigma) / c <= h)],
    )


def _write(problem: SoftmaxFitness, formulation: str) -> cp.Problem:
    arrays = problem.geometry.moves, problem.geometry.representation, problem.targets
    return smoothed(formulation, arrays, (problem.t1, problem.t2), problem.total_weight)


def _scaled_program(
    problem: SoftmaxFitness, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram:
    scaled, program = _units_and_program(problem, formulation)
    return attempts.ScaledProgram(
        program,
        scaled,
        covariance=lambda: program.var_dict["Sigma"].value,
        dual=partial(_dual, scaled, program),
        constraints=("privacy", "accuracy"),
    )


FORMULATIONS = attempts.Formulations(
    lambda _: dict.fromkeys(("schur", "matrix_frac"), CONES), _write, _scaled_program, formulas.softmax
)


def _units_and_program(problem: SoftmaxFitness, formulation: str) -> tuple[Scaled, cp.Problem]:
    """Return the units, and the program scaled to maxima near 1.

    With ``unit ≈ α`` and Σ in units of √α, costs, variances and F are in units of √α, and t₁ and t₂ are multiplied by
    √α. Dropped neighbours and queries are included again, because exponents 0 contribute to a soft maximum.
    """
    base = Scaled.of(problem.accuracy_first)
    unit = base.unit**0.5
    scaled = replace(base, problem=problem, lift=base.lift * unit**0.5, unit=unit)
    rank = scaled.sizes[2]
    moves, queries = np.zeros((rank, problem.geometry.moves.shape[1])), np.zeros((len(problem.targets), rank))
    moves[:, scaled.kept_moves] = scaled.moves
    queries[scaled.kept_queries] = scaled.queries
    queries *= np.sqrt(problem.targets)[:, None]
    sharpness = problem.t1 * unit, problem.t2 * unit
    return scaled, smoothed(formulation, (moves, queries, problem.targets), sharpness, problem.total_weight)


def _dual(scaled: Scaled, program: cp.Problem, privacy: Array, accuracy: Array) -> SoftmaxDual:
    """Return the better dual weights: the soft-maximum weights of the repaired covariance, or the multipliers.

    Both are optimal at the optimum. The former are usually better, unless a high sharpness amplifies the error of the
    backend.
    """
    problem = scaled.problem
    try:
        covariance = scaled.covariance(program.var_dict["Sigma"].value)
    except BackendError:
        # Reading Σ raises the same error again, or the run is judged at its starting point.
        covariance = scaled.covariance(np.eye(scaled.sizes[2]))
        start_dual: SoftmaxDual = problem.dual_at(covariance)
        return start_dual
    weights: SoftmaxDual = problem.dual_at(covariance)
    neighbour_weights, query_weights = np.maximum(privacy, 0.0), np.maximum(accuracy, 0.0)
    if not (valid_weights(neighbour_weights) and valid_weights(query_weights)):
        return weights
    multipliers = SoftmaxDual(neighbour_weights / neighbour_weights.sum(), query_weights / query_weights.sum())
    return max(weights, multipliers, key=lambda dual: problem.certify(covariance, dual).lower_bound)

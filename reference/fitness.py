"""Fitness for use through CVXPY: Problems 1, 2 and 3 stated, handed to a backend, repaired and judged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import BackendError, InvalidInputError
from dualmech.geometry.orbits import Orbits, averages
from dualmech.problems.fitness import FitnessDual, FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance, VarianceDual
from dualmech.reference import attempts, backends, statements
from dualmech.reference.scaling import Scaled, make_definite, returned_array
from dualmech.reference.statements import label, variances
from dualmech.validate import Array

FORMULATIONS = {
    "schur": frozenset({"PSD"}),
    "matrix_frac": frozenset({"PSD"}),
    "logdet": frozenset({"PSD", "ExpCone"}),
    "sum": frozenset({"PSD"}),
}
"""The statements by name, each with the cones that it needs beyond linear ones."""

FIRST_SHARPNESS = 1.0  # sharpness of a centring problem that is only to be read
GROWTH = 10.0  # factor from one sharpness on the central path to the next
LAST_BOUND = 0.25  # the path ends where its own bound on the gap is this share of the tolerance
PATH_ACCURACY = 0.1  # a centring problem is solved this much more accurately than a single program


def _write(
    problem: FitnessForUse | PrivacyFirst,
    formulation: str,
    *,
    sharpness: float | None = None,
    orbits: object = None,
) -> cp.Problem:
    if sharpness is not None and formulation != "logdet":
        raise InvalidInputError(f"sharpness belongs to formulation 'logdet', not to {formulation!r}")
    chosen = FIRST_SHARPNESS if sharpness is None else validate.positive_number(sharpness=sharpness)
    cost = problem.cost if isinstance(problem, PrivacyFirst) else None
    aim = _aim(formulation, problem.targets, cost)
    if orbits is not None:
        whole = slice(None)
        means = _means(problem, orbits, formulation, whole, whole)
        return statements.schur_by_orbit(aim, problem.geometry.moves, problem.geometry.representation, means)
    return _state(formulation, aim, problem.geometry.moves, problem.geometry.representation, chosen)


def _read(
    problem: FitnessForUse | PrivacyFirst,
    formulation: str,
    request: attempts.BackendRequest,
    orbits: object = None,
) -> attempts.Readout:
    scaled = Scaled.of(problem)
    aim = _aim(formulation, np.ones(scaled.sizes[1]), 1.0 if isinstance(problem, PrivacyFirst) else None)
    if orbits is None:
        program, dual = _state(formulation, aim, scaled.moves, scaled.queries, FIRST_SHARPNESS), scaled.dual
    else:
        means = _means(problem, orbits, formulation, scaled.kept_moves, scaled.kept_queries)
        program = statements.schur_by_orbit(aim, scaled.moves, scaled.queries, means)
        dual = partial(_spread_dual, scaled, means)
    return attempts.Readout(
        program,
        scaled,
        covariance=lambda: program.var_dict["Sigma"].value,
        dual=dual,
        constraints=("privacy", "accuracy"),
        optimum=lambda _: aim.optimum,
        steps=_central_path(program, scaled, request.tol) if formulation == "logdet" else None,
    )


STATEMENT = attempts.Statement(lambda _: FORMULATIONS, _write, _read, symmetries=True)


def _means(
    problem: FitnessForUse | PrivacyFirst, orbits: Any, formulation: str, neighbours: Any, queries: Any
) -> tuple[sp.csr_array, sp.csr_array]:
    """Return what takes means over the orbits of the kept neighbours, and of the kept queries."""
    if formulation != "schur":
        raise InvalidInputError(f"orbits are for formulation 'schur', not for {formulation!r}")
    found = Orbits.of(problem, orbits)
    return averages(found.neighbours[neighbours]), averages(found.queries[queries])


def _spread_dual(
    scaled: Scaled, means: tuple[sp.csr_array, sp.csr_array], privacy: Array, accuracy: Array
) -> FitnessDual:
    """Return the weights of all members from multipliers of orbits; those of none, as a first guess has, are equal."""
    return scaled.dual(*(_members(mean, each) for mean, each in zip(means, (privacy, accuracy), strict=True)))


def _members(mean: sp.csr_array, multipliers: Array) -> Array:
    return np.asarray(mean.T @ multipliers) if len(multipliers) == mean.shape[0] else multipliers


def _aim(formulation: str, targets: Array, cost: float | None) -> statements.Aim:
    if formulation == "sum":
        return statements.sum_of_both(targets)
    return statements.accuracy_first(targets) if cost is None else statements.privacy_first(targets, cost)


def _state(
    formulation: str, aim: statements.Aim, moves: Array, queries: Array, sharpness: float
) -> cp.Problem:
    if formulation == "logdet":
        return statements.logdet(aim, moves, queries, sharpness)
    if formulation == "matrix_frac":
        return statements.matrix_frac(aim, moves, queries)
    return statements.schur(aim, moves, queries)


def _central_path(program: cp.Problem, scaled: Scaled, tol: float) -> Iterator[attempts.Step]:
    """Sharpen a centring problem, in units in which the optimum is about 1, as far as the tolerance needs."""
    (inverse_sharpness,) = program.parameters()
    barriers = sum(scaled.sizes)
    last = 1 / (LAST_BOUND * tol)
    for step in range(math.ceil(math.log(last, GROWTH)) + 1):
        sharpness = barriers * min(GROWTH**step, last)
        inverse_sharpness.value = 1 / sharpness
        bound = barriers / sharpness * scaled.objective_unit
        note = f"whose centre is at most (s + m + k)/t = {bound:.2g} too high"
        yield PATH_ACCURACY * tol, f"; sharpness t = {barriers / bound:.3g}, {note}"


# Total variance through CVXPY: the matrix mechanism's program stated, handed to a backend, repaired and judged.
#
# Throughout, X (k, k) is ``Σ⁻¹``, the inverse of the covariance of the noise on B x, so that ``B' X B`` is the
# cost matrix of the strategy; ``BU`` (k, s) holds the moves between neighbouring data sets in its columns, and
# ``V`` (m, k) the queries on B x in its rows, ``√w_j v_j``.


VARIANCE_FORMULATIONS = (
    "gram",
    "schur",
    "matrix_frac",
)  # the statements by name; all need the semidefinite cone


def _variance_write(problem: TotalVariance, formulation: str) -> cp.Problem:
    geometry, weights = problem.geometry, problem.weights[problem.asked]
    moves, queries = geometry.moves, geometry.representation * np.sqrt(weights)[:, None]
    if len(geometry.unmoved):
        # X would be infinite on what no neighbour moves: it is released exactly, and left out here.
        moved = scipy.linalg.null_space(geometry.unmoved)
        moves, queries = moved.T @ moves, queries @ moved
    return STATEMENTS[formulation](moves, queries)


def _variance_read(
    problem: TotalVariance, formulation: str, request: attempts.BackendRequest
) -> attempts.Readout:
    scaled = Scaled.of_sum(problem)
    program = STATEMENTS[formulation](scaled.moves, scaled.queries)
    return attempts.Readout(
        program,
        scaled,
        covariance=lambda: _inverse(program.var_dict["X"].value),
        dual=lambda privacy: VarianceDual(scaled.neighbour_weights(privacy)),
        constraints=("privacy",),
    )


def schur(moves: Array, queries: Array) -> cp.Problem:
    """State the problem with one linear matrix inequality, as the papers do.

    By the Schur complement, ``[[X, V'], [V, Y]] ⪰ 0`` says that ``Y ⪰ V X⁻¹ V'``, on whose diagonal the
    weighted variances stand. (Where X is singular, it says so on the range of X, which holds all of them.)
    """
    BU, V = cp.Constant(moves, name="BU"), cp.Constant(queries, name="V")
    X = cp.Variable((len(moves), len(moves)), symmetric=True, name="X")
    Y = cp.Variable((len(queries), len(queries)), symmetric=True, name="Y")
    return cp.Problem(
        cp.Minimize(cp.trace(Y)),
        [label("schur", cp.bmat([[X, V.T], [V, Y]]) >> 0), label("privacy", variances(BU.T, X) <= 1)],
    )


def gram(moves: Array, queries: Array) -> cp.Problem:
    """State the problem on the Gram matrix of the queries alone: its size knows nothing of their number.

    With ``V = Q R``, the columns of Q (m, k) orthonormal, ``tr(V X⁻¹ V') = tr(R X⁻¹ R')``: the triangle R
    takes the place of V.
    """
    return schur(moves, scipy.linalg.qr(queries, mode="r", check_finite=False)[0][: queries.shape[1]])


def matrix_frac(moves: Array, queries: Array) -> cp.Problem:
    """State the problem with the total variance ``tr(V X⁻¹ V')`` as a matrix fraction."""
    BU, V = cp.Constant(moves, name="BU"), cp.Constant(queries, name="V")
    X = cp.Variable((len(moves), len(moves)), symmetric=True, name="X")
    return cp.Problem(cp.Minimize(cp.matrix_frac(V.T, X)), [label("privacy", variances(BU.T, X) <= 1)])


STATEMENTS = {"gram": gram, "schur": schur, "matrix_frac": matrix_frac}

VARIANCE_STATEMENT = attempts.Statement(
    lambda _: dict.fromkeys(VARIANCE_FORMULATIONS, backends.SEMIDEFINITE), _variance_write, _variance_read
)


def _inverse(cost: Array | None) -> Array:
    """Return ``Σ = X⁻¹``, X moved towards the identity where a backend left it indefinite."""
    factor = linalg.cholesky(make_definite(returned_array(cost)))
    if factor is None:
        raise BackendError("the backend returned no covariance to judge")
    half = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), check_finite=False)
    return np.asarray(half @ half.T)

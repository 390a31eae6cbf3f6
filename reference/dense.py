"""Fitness for use and total variance on a matrix: programs in scaled units, and reading of their answers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dualmech.errors import InvalidInputError
from dualmech.geometry.orbits import Orbits, averages
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.reference import attempts, backends, cp, fitness, variance
from dualmech.reference.scaling import Scaled, inverse
from dualmech.validate import Array

CONES_BY_FORMULATION = {
    **dict.fromkeys(("schur", "matrix_frac"), backends.SEMIDEFINITE),
    "logdet": backends.SEMIDEFINITE | {"ExpCone"},
    "sum": backends.SEMIDEFINITE,
}
"""The formulations of fitness for use by name, with the cones that they need besides linear ones."""

Means = tuple[sp.csr_array, sp.csr_array]  # matrices of means over the orbits of neighbours, and of queries


def _state(
    problem: FitnessForUse | PrivacyFirst,
    formulation: str,
    arrays: tuple[Array, Array, Array],  # differences, queries, targets
    cost: float,  # the budget of `PrivacyFirst`
    *,
    sharpness: float = attempts.DEFAULT_SHARPNESS,
    means: Means | None = None,
) -> tuple[fitness.Aim, cp.Problem]:
    moves, queries, targets = arrays
    aim = fitness.sum_of_both(targets) if formulation == "sum" else fitness.aim_of(problem, targets, cost)
    extra: tuple[Any, ...] = (sharpness,) if formulation == "logdet" else () if means is None else (means,)
    return aim, fitness.PROGRAMS[formulation](aim, moves, queries, *extra)


def _write(
    problem: FitnessForUse | PrivacyFirst, formulation: str, *, sharpness: float | None = None, orbits: object = None
) -> cp.Problem:
    valid_sharpness = attempts.sharpness_of(formulation, sharpness)
    geometry, cost = problem.geometry, getattr(problem, "cost", 1.0)
    arrays = geometry.moves, geometry.representation, problem.targets
    means = _means(problem, orbits, formulation, slice(None), slice(None))
    return _state(problem, formulation, arrays, cost, sharpness=valid_sharpness, means=means)[1]


def _scaled_program(
    problem: FitnessForUse | PrivacyFirst, formulation: str, request: attempts.BackendRequest, orbits: object = None
) -> attempts.ScaledProgram:
    scaled = Scaled.of(problem)
    means = _means(problem, orbits, formulation, scaled.kept_moves, scaled.kept_queries)
    arrays = scaled.moves, scaled.queries, np.ones(scaled.sizes[1])
    aim, program = _state(problem, formulation, arrays, 1.0, means=means)
    unit = scaled.objective_unit
    path = attempts.central_path(program, request.tol, sum(scaled.sizes), "(s + m + k)/t", unit=unit)
    return attempts.ScaledProgram(
        program,
        scaled,
        covariance=lambda: program.var_dict["Sigma"].value,
        dual=scaled.dual if means is None else partial(_spread_dual, scaled, means),
        constraints=("privacy", "accuracy"),
        optimum=lambda _: aim.optimum,
        steps=path if formulation == "logdet" else None,
    )


FORMULATIONS = attempts.Formulations(lambda _: CONES_BY_FORMULATION, _write, _scaled_program, symmetries=True)


def _means(
    problem: FitnessForUse | PrivacyFirst, orbits: Any, formulation: str, neighbours: Any, queries: Any
) -> Means | None:
    if orbits is None:
        return None
    if formulation != "schur":
        raise InvalidInputError(f"orbits are supported for formulation 'schur', not for {formulation!r}")
    symmetry = Orbits.of(problem, orbits)
    return averages(symmetry.neighbours[neighbours]), averages(symmetry.queries[queries])


def _spread_dual(scaled: Scaled, means: Means, privacy: Array, accuracy: Array) -> Any:
    pairs = zip(means, (privacy, accuracy), strict=True)
    return scaled.dual(*(mean.T @ values if len(values) == mean.shape[0] else values for mean, values in pairs))


def _variance_write(problem: TotalVariance, formulation: str, *, sharpness: float | None = None) -> cp.Problem:
    valid_sharpness = attempts.sharpness_of(formulation, sharpness)
    geometry = problem.geometry
    moves, queries = geometry.moves, geometry.representation * np.sqrt(problem.row_weights)[:, None]
    if len(geometry.unmoved):
        # X is infinite in insensitive directions, which are released exactly: they are dropped.
        sensitive = scipy.linalg.null_space(geometry.unmoved)
        moves, queries = sensitive.T @ moves, queries @ sensitive
    return variance.state(formulation, moves, queries, valid_sharpness)


def _scaled_variance_program(
    problem: TotalVariance, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram:
    scaled = Scaled.of(problem)
    program = variance.state(formulation, scaled.moves, scaled.queries)
    size, moves = scaled.moves.shape
    path = attempts.central_path(
        program, request.tol, moves + size, "(s + k)/t", optimum=size, unit=scaled.objective_unit
    )
    return attempts.ScaledProgram(
        program,
        scaled,
        covariance=lambda: inverse(program.var_dict["X"].value),
        dual=scaled.dual,
        constraints=("privacy",),
        optimum=lambda value: attempts.trace_of(program, "Y") if formulation == "logdet" else value,
        steps=path if formulation == "logdet" else None,
    )


VARIANCE_FORMULATIONS = attempts.Formulations(
    lambda _: variance.CONES_BY_FORMULATION, _variance_write, _scaled_variance_program
)

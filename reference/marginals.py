"""Marginal tables through CVXPY: the cone programs over attribute sets, whatever the number of cells.

Throughout, τ (t,) holds the noise levels of the residual subspaces, ``mult`` (t,) their dimensions, and ``N``
(t, tables) is sparse: ``N' τ ≤ 1`` says that every table meets its target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import numpy.typing as npt

from dualmech.errors import BackendError, InvalidInputError
from dualmech.problems.marginals import MarginalDual, MarginalFitness
from dualmech.reference.engine import attempts
from dualmech.reference.engine.scaling import shares
from dualmech.reference.statements import named
from dualmech.solution import Solution, warned
from dualmech.validate import Array, Matrix

FLOOR = 1e-12
"""Least noise level that a repair leaves, relative to the largest, in units in which the optimal ones are near 1."""


def formulate(problem: MarginalFitness, formulation: str = "primal") -> cp.Problem:
    """State the problem over its own arrays; see `dualmech.reference.formulate`."""
    dimensions, sensitivities = problem.workload.lattice.dimensions, problem.sensitivities
    return STATEMENTS[_named(formulation)](dimensions, sensitivities)


def solve(
    problem: MarginalFitness,
    *,
    backend: str = "CLARABEL",
    formulation: str = "primal",
    tol: float | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> Solution:
    """Solve the problem with a backend of CVXPY; see `dualmech.reference.solve`."""
    name = _named(formulation)
    request = attempts.Request.of(backend, frozenset({"SOC"}), tol, time_limit, options)
    scaled = _Units.of(problem)
    program = STATEMENTS[name](scaled.dimensions, scaled.sensitivities)
    primal = name == "primal"
    reading = attempts.Reading(
        program,
        scaled,
        covariance=(lambda: program.var_dict["tau"].value)
        if primal
        else (lambda: scaled.from_weights(program)),
        dual=scaled.dual if primal else (lambda _: scaled.dual(program.var_dict["m"].value)),
        constraints=("accuracy",) if primal else ("spent",),
        optimum=lambda: math.nan if program.value is None else float(program.value) ** (1 if primal else 2),
    )
    answer = attempts.solve(reading, request)
    return warned(replace(answer, solver=f"{answer.solver}:{name}"), stacklevel=4)


def primal(dimensions: Array, sensitivities: Matrix) -> cp.Problem:
    """State the least privacy cost of noise that meets the targets; reciprocals are second-order cones."""
    mult, N = cp.Constant(dimensions, name="mult"), cp.Constant(sensitivities, name="N")
    tau = cp.Variable(len(dimensions), name="tau")
    return cp.Problem(
        cp.Minimize(mult @ cp.inv_pos(tau)),
        [
            named("accuracy", N.T @ tau <= 1),
        ],
    )


def dual(dimensions: Array, sensitivities: Matrix) -> cp.Problem:
    """State the best bound, ``√α``: with ``e = (N m) / mult``, maximise ``Σ_T mult_T √e_T``."""
    root_mult, N = cp.Constant(np.sqrt(dimensions), name="root_mult"), cp.Constant(sensitivities, name="N")
    m = cp.Variable(sensitivities.shape[1], nonneg=True, name="m")
    return cp.Problem(
        cp.Maximize(cp.sum(cp.multiply(root_mult, cp.sqrt(N @ m)))),
        [
            named("spent", cp.sum(m) <= 1),
        ],
    )


STATEMENTS = {"primal": primal, "dual": dual}


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """A problem with the noise levels in units in which all 1 is feasible, and the best for equal multipliers."""

    problem: MarginalFitness
    dimensions: Array
    sensitivities: Matrix
    levels: Array
    objective_unit: float

    @classmethod
    def of(cls, problem: MarginalFitness) -> _Units:
        """Scale by the optimum for equal multipliers."""
        dimensions, sensitivities = problem.workload.lattice.dimensions, problem.sensitivities
        levels = np.sqrt(dimensions / np.asarray(sensitivities.mean(axis=1)).ravel())
        levels = levels / (sensitivities.T @ levels).max()
        scaled = dimensions / levels
        unit = float(scaled.sum())
        return cls(problem, scaled / unit, sensitivities.multiply(levels[:, None]).tocsr(), levels, unit)

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of tables and of residual subspaces."""
        return self.sensitivities.shape[1], len(self.levels)

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> Array:
        """Return the noise levels, positive and feasible; a matrix stands for its diagonal."""
        if inner is None or not np.all(np.isfinite(np.asarray(inner, dtype=np.float64))):
            raise BackendError("the backend returned no noise to judge")
        given = np.asarray(inner, dtype=np.float64)
        given = np.diagonal(given) if given.ndim == 2 else given
        if given.max() <= 0:
            raise BackendError("the backend returned no noise to judge: no level is positive")
        return self.problem.feasible(np.maximum(given, FLOOR * given.max()) * self.levels)

    def from_weights(self, program: cp.Problem) -> Array | None:
        """Return the noise that the weights of the dual program ask for, ``τ_T ∝ √(mult_T / (N m)_T)``."""
        weights = program.var_dict["m"].value
        if weights is None:
            return None
        seen = self.sensitivities @ np.maximum(weights, FLOOR * np.max(weights))
        return np.asarray(np.sqrt(self.dimensions / seen))

    def dual(self, accuracy: Array | None) -> MarginalDual:
        """Return multipliers as table weights with ``Σ m_S c_S = 1``."""
        if accuracy is None:
            raise BackendError("the backend returned no weights to judge")
        return MarginalDual(shares(accuracy) / self.problem.targets)


def _named(formulation: str) -> str:
    if not isinstance(formulation, str) or formulation not in STATEMENTS:
        raise InvalidInputError(f"formulation must be one of {', '.join(STATEMENTS)}, got {formulation!r}")
    return formulation

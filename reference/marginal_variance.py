"""Total variance of marginal tables through CVXPY: a check of the closed form, which needs no solver."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import BackendError
from dualmech.problems.marginals import MarginalVariance
from dualmech.reference.engine import attempts
from dualmech.reference.statements import named
from dualmech.solution import Solution, warned
from dualmech.validate import Array

FORMULATIONS = ("primal",)

FLOOR = 1e-12
"""Least noise level that a repair leaves, relative to the largest, in scaled units."""


def formulate(problem: MarginalVariance, formulation: str = "primal") -> cp.Problem:
    """State the problem over its own arrays; see `dualmech.reference.formulate`."""
    validate.choice(FORMULATIONS, formulation=formulation)
    dimensions = problem.workload.lattice.dimensions
    return _state(dimensions, dimensions * problem.seen)


def solve(
    problem: MarginalVariance,
    *,
    backend: str = "CLARABEL",
    formulation: str = "primal",
    tol: float | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> Solution:
    """Solve the problem with a backend of CVXPY; see `dualmech.reference.solve`."""
    name = validate.choice(FORMULATIONS, formulation=formulation)
    request = attempts.Request.of(backend, frozenset({"SOC"}), tol, time_limit, options)
    scaled = _Units.of(problem)
    dimensions = problem.workload.lattice.dimensions
    program = _state(
        dimensions / scaled.levels, dimensions * problem.seen * scaled.levels / scaled.objective_unit
    )
    reading = attempts.Reading(
        program,
        scaled,
        covariance=lambda: program.var_dict["tau"].value,
        dual=lambda: None,
        constraints=(),
        optimum=lambda: math.nan if program.value is None else float(program.value),
    )
    answer = attempts.solve(reading, request)
    return warned(replace(answer, solver=f"{answer.solver}:{name}"), stacklevel=4)


def _state(dimensions: Array, bill: Array) -> cp.Problem:
    """State the least bill of noise that costs at most 1; reciprocals are second-order cones."""
    mult, v = cp.Constant(dimensions, name="mult"), cp.Constant(bill, name="v")
    tau = cp.Variable(len(dimensions), name="tau")
    return cp.Problem(cp.Minimize(v @ tau), [named("privacy", mult @ cp.inv_pos(tau) <= 1)])


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """A problem with the noise levels in units in which all 1 costs 1 and every subspace's bill is of one size."""

    problem: MarginalVariance
    levels: Array
    objective_unit: float

    @classmethod
    def of(cls, problem: MarginalVariance) -> _Units:
        """Scale by the noise whose bill is that of every subspace alike, brought to cost 1."""
        bill = problem.workload.lattice.dimensions * problem.seen
        levels = problem.feasible(1 / bill)
        return cls(problem, levels, float(bill @ levels))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of residual subspaces; there are no multipliers to read."""
        return (len(self.levels),)

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> Array:
        """Return the noise levels, positive and at cost 1; a matrix stands for its diagonal."""
        given = np.asarray(np.nan if inner is None else inner, dtype=np.float64)
        given = np.diagonal(given) if given.ndim == 2 else given
        if not np.all(np.isfinite(given)) or given.max() <= 0:
            raise BackendError("the backend returned no noise to judge")
        return self.problem.feasible(np.maximum(given, FLOOR * given.max()) * self.levels)

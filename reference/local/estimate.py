"""Non-negative estimates through CVXPY: a quadratic program, handed to a backend, repaired and judged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import numpy.typing as npt

from dualmech.problems.local.estimate import EstimateDual, NonnegativeEstimate
from dualmech.reference.engine import attempts
from dualmech.reference.engine.scaling import entries
from dualmech.reference.statements import label
from dualmech.validate import Array

CONES = frozenset({"SOC"})  # what a backend must be able to do where it cannot take a square as it is

ORTHOGONAL = 1e-4
"""Cosine between a column and the residual below which it is taken for 0: the cell need not be empty."""


def _write(problem: NonnegativeEstimate, formulation: str) -> cp.Problem:
    return quadratic(problem.workload.matrix, problem.answers, problem.total)


def _read(
    problem: NonnegativeEstimate, formulation: str, request: attempts.BackendRequest
) -> attempts.Readout:
    scaled = _EstimateUnits.of(problem)
    program = quadratic(
        problem.workload.matrix * (scaled.cell / scaled.answer),
        problem.answers / scaled.answer,
        None if problem.total is None else problem.total / scaled.cell,
    )
    return attempts.Readout(
        program,
        scaled,
        covariance=lambda: program.var_dict["x"].value,
        dual=lambda: scaled.dual(program.constraints[0].dual_value, program.var_dict["x"].value),
    )


def quadratic(queries: Any, answers: Array, total: float | None) -> cp.Problem:
    """State the estimate, with the residual r as a variable: its multiplier is what proves the bound."""
    W, a = cp.Constant(queries, name="W"), cp.Constant(answers, name="a")
    x = cp.Variable(queries.shape[1], name="x", nonneg=True)
    r = cp.Variable(len(answers), name="r")
    known = [] if total is None else [label("total", cp.sum(x) == total)]
    return cp.Problem(cp.Minimize(cp.sum_squares(r) / 2), [label("residual", W @ x - a == r), *known])


@dataclass(frozen=True, slots=True, eq=False)
class _EstimateUnits:
    """A problem with answers and cells in units in which both are of order one."""

    problem: NonnegativeEstimate
    answer: float  # answer, cell: the answer, and the number of users in a cell, that are called 1
    cell: float

    @classmethod
    def of(cls, problem: NonnegativeEstimate) -> _EstimateUnits:
        """Scale by the judge's scale, and by the mean norm of a query's column."""
        answer = math.sqrt(2 * problem.scale)
        column = float(np.linalg.norm(problem.workload.row_norms())) / math.sqrt(problem.workload.shape[1])
        return cls(problem, answer, answer / column)

    @property
    def objective_unit(self) -> float:
        """The squared distance that is called 1."""
        return self.answer**2

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of cells."""
        return (self.problem.workload.shape[1],)

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> Array:
        """Return an estimate, exactly feasible; a matrix stands for its diagonal, the identity for equal cells."""
        return self.problem.feasible(self.cell * entries(inner, "estimate"))

    def dual(self, residual: Array | None, estimate: Array | None) -> EstimateDual:
        """Return the multiplier of the residual, or what is left by least squares on the cells that it leaves free.

        The judge says which proves more. Zeros stand for what is known before there is an answer.
        """
        problem = self.problem
        if residual is None or estimate is None:
            return EstimateDual(np.zeros(len(problem.answers)))
        queries = problem.workload.dense()
        slopes, sizes = (
            np.abs(queries.T @ residual),
            np.linalg.norm(queries, axis=0) * np.linalg.norm(residual),
        )
        inside = queries[:, slopes <= ORTHOGONAL * sizes]
        fitted = inside @ np.linalg.lstsq(inside, problem.answers, rcond=None)[0] - problem.answers
        candidates = [EstimateDual(self.answer * residual), EstimateDual(fitted)]
        data = self.covariance(estimate)
        return max(candidates, key=lambda each: problem.certify(data, each).lower_bound)


STATEMENT = attempts.Statement(lambda _: {"qp": CONES}, _write, _read)

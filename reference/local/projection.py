"""Projection onto local strategies through CVXPY: a quadratic program, handed to a backend, repaired and judged."""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import numpy.typing as npt

from dualmech.problems.local.projection import LocalProjection, ProjectionDual
from dualmech.reference.engine import attempts
from dualmech.reference.engine.scaling import returned_array
from dualmech.reference.statements import label
from dualmech.validate import Array

CONES = frozenset({"SOC"})  # what a backend must be able to do where it cannot take a square as it is


def _write(problem: LocalProjection, formulation: str) -> cp.Problem:
    return quadratic(problem.matrix, problem.growth, problem.floor)


def _read(problem: LocalProjection, formulation: str, request: attempts.BackendRequest) -> attempts.Readout:
    scaled = _ProjectionUnits.of(problem)
    program = quadratic(scaled.matrix, problem.growth, scaled.floor, len(problem.matrix), scaled.weight)
    return attempts.Readout(
        program,
        scaled,
        covariance=lambda: program.var_dict["Q"].value,
        dual=lambda: _multipliers(program, scaled),
    )


def quadratic(
    matrix: Array, growth: float, floor: Array | None, total: float = 1.0, weight: float = 1.0
) -> cp.Problem:
    """State the projection onto the matrices whose columns sum to `total`, with `weight` on the squared distance."""
    R = cp.Constant(matrix, name="R")
    Q = cp.Variable(matrix.shape, name="Q")
    z = cp.Variable(len(matrix), name="z", nonneg=True) if floor is None else cp.Constant(floor, name="z")
    least = cp.reshape(z, (len(matrix), 1), order="C") @ np.ones((1, matrix.shape[1]))
    return cp.Problem(
        cp.Minimize(weight / 2 * cp.sum_squares(Q - R)),
        [
            label("columns", cp.sum(Q, axis=0) == total),
            label("least", Q - least >= 0),
            label("most", growth * least - Q >= 0),
        ],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _ProjectionUnits:
    """A problem with probabilities in units of ``1/m``, and distances in units of that of a strategy close by.

    Attributes
    ----------
    matrix : (m, n) array
        m R.
    floor : (m,) array or None
        m z.
    weight : float
        What the squared distance is multiplied by.
    """

    problem: LocalProjection
    matrix: Array
    floor: Array | None
    objective_unit: float

    @classmethod
    def of(cls, problem: LocalProjection) -> _ProjectionUnits:
        """Scale by the number of outputs."""
        count = len(problem.matrix)
        close = problem.feasible(problem.matrix)
        unit = problem.scale + float(np.square(close - problem.matrix).sum()) / 2
        return cls(
            problem, count * problem.matrix, None if problem.floor is None else count * problem.floor, unit
        )

    @property
    def weight(self) -> float:
        """What the squared distance is multiplied by."""
        return 1 / (self.objective_unit * len(self.matrix) ** 2)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of a strategy: the identity, of that size, stands for equal probabilities."""
        return (len(self.matrix),)

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> Array:
        """Return a strategy, exactly feasible, there being no use for what may be spared."""
        given = returned_array(inner, "strategy")
        if given.shape != self.matrix.shape:
            given = np.ones(self.matrix.shape)
        return self.problem.feasible(given / len(self.matrix))


def _multipliers(program: cp.Problem, scaled: _ProjectionUnits) -> ProjectionDual:
    """Return the multipliers in the problem's own units; zeros before there are any."""
    columns, least, most = (constraint.dual_value for constraint in program.constraints)
    if columns is None or least is None or most is None:
        return ProjectionDual(np.zeros(scaled.matrix.shape[1]))
    unit = scaled.objective_unit * len(scaled.matrix)
    return ProjectionDual(-unit * columns, unit * (least - most))


STATEMENT = attempts.Statement(lambda _: {"qp": CONES}, _write, _read)

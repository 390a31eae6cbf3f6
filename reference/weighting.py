"""Query weighting through CVXPY: Program 1, and its repaired and judged answers.

u (k,) are the weights of the design queries, ``c`` (k,) the costs of a unit of noise on each of them, and ``N`` (k, s)
the sensitivities of pairs of neighbours per unit of each weight: ``(Q U)∘(Q U)``, Q∘Q by default, or ``|Q U|`` for
pure privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dualmech.errors import BackendError
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.reference import attempts, cp
from dualmech.reference.attempts import label
from dualmech.reference.formulas import mechanisms as formulas
from dualmech.reference.scaling import entries, shares
from dualmech.validate import Array

CONES_BY_FORMULATION = {
    "approximate": {"inv_pos": frozenset({"SOC"}), "sdp": frozenset({"PSD"})},
    "pure": {"power": frozenset({"SOC"}), "power_cone": frozenset({"PowCone3D"})},
}
"""The formulations by kind of privacy and name, the default first, with the cones that they need."""

MIN_WEIGHT = 1e-9  # lower limit on repaired weights, relative to the largest


def inv_pos(costs: Array, sensitivities: Array) -> cp.Problem:
    """State Program 1 with reciprocals, which are second-order cones: ``1/u ≤ v`` is ``‖(2, u - v)‖ ≤ u + v``.

    In formulas, and as a program: minimise ``Σ_i c_i / u_i`` over ``u > 0`` subject to ``N'u ≤ 1``.

    Examples
    --------
    >>> import dualmech as dm, numpy as np
    >>> problem = dm.QueryWeighting(dm.workloads.prefix(2), np.eye(2))
    >>> program = inv_pos(problem.costs, problem.sensitivities)
    >>> _, u = program.solve(solver="CLARABEL"), program.var_dict["u"].value
    >>> multipliers = program.constraints[0].dual_value
    >>> problem.certify(problem.feasible(u), problem.as_dual(multipliers / multipliers.sum())).gap < 1e-6
    True
    """
    c, N = cp.Constant(costs, name="c"), cp.Constant(sensitivities, name="N")
    u = cp.Variable(len(costs), name="u")
    return cp.Problem(cp.Minimize(c @ cp.inv_pos(u)), [label("privacy", N.T @ u <= 1)])


def sdp(costs: Array, sensitivities: Array) -> cp.Problem:
    """State Program 1 as in the paper, with one small linear matrix inequality per design query.

    ``[[u_i, 1], [1, v_i]] ⪰ 0`` is equivalent to ``v_i ≥ 1 / u_i``.
    """
    c, N = cp.Constant(costs, name="c"), cp.Constant(sensitivities, name="N")
    u, v = cp.Variable(len(costs), name="u"), cp.Variable(len(costs), name="v")
    return cp.Problem(
        cp.Minimize(c @ v),
        [
            *[label(f"reciprocal[{i}]", cp.bmat([[u[i], 1], [1, v[i]]]) >> 0) for i in range(len(costs))],
            label("privacy", N.T @ u <= 1),
        ],
    )


def power(costs: Array, sensitivities: Array) -> cp.Problem:
    """State the problem of pure privacy with inverse squares, which CVXPY converts to second-order cones."""
    c, N = cp.Constant(costs, name="c"), cp.Constant(sensitivities, name="N")
    u = cp.Variable(len(costs), name="u")
    return cp.Problem(cp.Minimize(c @ cp.power(u, -2)), [label("privacy", N.T @ u <= 1)])


def power_cone(costs: Array, sensitivities: Array) -> cp.Problem:
    """State the problem of pure privacy with power cones: ``v^(1/3) u^(2/3) ≥ 1`` is equivalent to ``v ≥ u^-2``."""
    c, N = cp.Constant(costs, name="c"), cp.Constant(sensitivities, name="N")
    u, v = cp.Variable(len(costs), name="u"), cp.Variable(len(costs), name="v")
    return cp.Problem(
        cp.Minimize(c @ v),
        [label("inverse_square", cp.PowCone3D(v, u, np.ones(len(costs)), 1 / 3)), label("privacy", N.T @ u <= 1)],
    )


PROGRAMS = {"inv_pos": inv_pos, "sdp": sdp, "power": power, "power_cone": power_cone}


def _write(problem: QueryWeighting, formulation: str) -> cp.Problem:
    units = _WeightingUnits.of(problem)
    rows = problem.sensitivities[np.ix_(units.queries, units.neighbours)]
    return PROGRAMS[formulation](problem.costs[units.queries], rows)


def _scaled_program(
    problem: QueryWeighting, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram:
    scaled = _WeightingUnits.of(problem)
    program = PROGRAMS[formulation](scaled.costs, scaled.sensitivities)
    return attempts.ScaledProgram(
        program, scaled, covariance=lambda: program.var_dict["u"].value, dual=scaled.dual, constraints=("privacy",)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _WeightingUnits:
    """A problem with weights scaled such that 1 is feasible, and optimal for equal multipliers.

    Superfluous and insensitive design queries are dropped, and neighbours without an effect on queries.
    """

    problem: QueryWeighting
    costs: Array  # costs, sensitivities: (k',), (k', s') c and N of the kept queries, in scaled units
    sensitivities: Array
    weights: Array  # (k',) units of the weights
    objective_unit: float  # the unit of the objective
    queries: npt.NDArray[np.intp]  # queries, neighbours: indices of the kept ones
    neighbours: npt.NDArray[np.intp]

    @classmethod
    def of(cls, problem: QueryWeighting) -> _WeightingUnits:
        queries = problem.geometry.weighed
        neighbours = np.flatnonzero(problem.sensitivities[queries].any(axis=0))
        costs, rows = problem.costs[queries], problem.sensitivities[np.ix_(queries, neighbours)]
        weights = (costs / rows.mean(axis=1)) ** (1 / (problem.power + 1))
        weights = weights / (rows.T @ weights).max()
        scaled = costs * weights**-problem.power
        unit = float(scaled.sum())
        return cls(problem, scaled / unit, rows * weights[:, None], weights, unit, queries, neighbours)

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.neighbours), len(self.queries)

    def covariance(self, inner: npt.ArrayLike | None, extra_cost: float = 0.0) -> Array:
        """Return positive and feasible weights of the design from a vector or the diagonal of a matrix."""
        weights = entries(inner, "weights")
        if weights.max() <= 0:
            raise BackendError("the backend returned no weights to judge: none is positive")
        repaired = np.maximum(weights, MIN_WEIGHT * weights.max()) * self.weights
        return self.problem.feasible(self.problem.geometry.spread(repaired))

    def dual(self, privacy: Array) -> WeightingDual:
        """Normalise the multipliers to dual weights, shape (s,); raises `BackendError` if none is positive."""
        all_weights = np.zeros(self.problem.sensitivities.shape[1])
        all_weights[self.neighbours] = shares(privacy)
        return WeightingDual(all_weights)


FORMULATIONS = attempts.Formulations(
    lambda problem: CONES_BY_FORMULATION[problem.privacy], _write, _scaled_program, formulas.weighting
)

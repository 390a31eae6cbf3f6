"""Query weighting through CVXPY: Program 1 stated, handed to a backend, repaired and judged.

Throughout, u (k,) holds the weights of the design queries, ``c`` (k,) what a unit of noise on each costs, and ``N``
(k, s) the sensitivity that a unit of each weight adds between each pair of neighbours: ``(Q U)∘(Q U)``, Q∘Q by
default, or ``|Q U|`` for pure privacy.
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

FLOOR = 1e-9  # least weight that a repair leaves, relative to the largest, where the optimal ones are near 1


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
    """State Program 1 as the paper does, with one small linear matrix inequality per design query.

    ``[[u_i, 1], [1, v_i]] ⪰ 0`` says that ``v_i ≥ 1 / u_i``.
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
    """State the problem of pure privacy, with the inverse squares as CVXPY writes them in second-order cones."""
    c, N = cp.Constant(costs, name="c"), cp.Constant(sensitivities, name="N")
    u = cp.Variable(len(costs), name="u")
    return cp.Problem(cp.Minimize(c @ cp.power(u, -2)), [label("privacy", N.T @ u <= 1)])


def power_cone(costs: Array, sensitivities: Array) -> cp.Problem:
    """State the problem of pure privacy with power cones: ``v^(1/3) u^(2/3) ≥ 1`` says that ``v ≥ u^-2``."""
    c, N = cp.Constant(costs, name="c"), cp.Constant(sensitivities, name="N")
    u, v = cp.Variable(len(costs), name="u"), cp.Variable(len(costs), name="v")
    return cp.Problem(
        cp.Minimize(c @ v),
        [label("inverse_square", cp.PowCone3D(v, u, np.ones(len(costs)), 1 / 3)), label("privacy", N.T @ u <= 1)],
    )


PROGRAMS = {"inv_pos": inv_pos, "sdp": sdp, "power": power, "power_cone": power_cone}


def _write(problem: QueryWeighting, formulation: str) -> cp.Problem:
    kept = _WeightingUnits.of(problem)
    rows = problem.sensitivities[np.ix_(kept.queries, kept.neighbours)]
    return PROGRAMS[formulation](problem.costs[kept.queries], rows)


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
    """A problem with the weights in units in which all 1 is feasible, and the best for equal multipliers.

    Left out are design queries that are not needed, or that no neighbour changes, and neighbours that change none.
    """

    problem: QueryWeighting
    costs: Array  # costs, sensitivities: (k',), (k', s') c and N of the kept queries, in scaled units
    sensitivities: Array
    weights: Array  # (k',) the weights that are called 1
    objective_unit: float  # the objective that is called 1
    queries: npt.NDArray[np.intp]  # queries, neighbours: what was kept
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

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> Array:
        """Return the weights of the design, positive and feasible, there being no use for what may be spared.

        A matrix stands for its diagonal: the identity for the weights that are called 1.
        """
        weights = entries(inner, "weights")
        if weights.max() <= 0:
            raise BackendError("the backend returned no weights to judge: none is positive")
        repaired = np.maximum(weights, FLOOR * weights.max()) * self.weights
        return self.problem.feasible(self.problem.geometry.spread(repaired))

    def dual(self, privacy: Array) -> WeightingDual:
        """Return the multipliers as dual weights (s,) that sum to 1; `BackendError` where they are none."""
        whole = np.zeros(self.problem.sensitivities.shape[1])
        whole[self.neighbours] = shares(privacy)
        return WeightingDual(whole)


FORMULATIONS = attempts.Formulations(
    lambda problem: CONES_BY_FORMULATION[problem.privacy], _write, _scaled_program, formulas.weighting
)

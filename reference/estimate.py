"""Non-negative estimates, projections and reconstructions through CVXPY: quadratic programs, repaired and judged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import BackendError, InvalidInputError
from dualmech.geometry.local import as_prior
from dualmech.problems.local.estimate import EstimateDual, NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection, ProjectionDual
from dualmech.reference import attempts, backends, cp
from dualmech.reference.attempts import label
from dualmech.reference.formulas import local as formulas
from dualmech.reference.scaling import entries, returned_array
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

if TYPE_CHECKING:
    from cvxpy.reductions.solvers.solver import Solver

CONES = frozenset({"SOC"})  # for backends without quadratic objectives

ORTHOGONAL_TOL = 1e-4  # a cell is free if the cosine of its column and the residual is smaller


def quadratic(queries: Any, answers: Array, total: float | None) -> cp.Problem:
    """State the estimate, with the residual r as a variable: its multiplier proves the bound.

    In formulas: minimise ``‖W x - a‖² / 2`` over ``x ≥ 0``, with ``1'x`` given if the total is. As a program:

        minimise ``r'r / 2`` over x ≥ 0, r subject to ``W x - a = r``.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.NonnegativeEstimate(dm.workloads.prefix(2), [3.0, 1.0])
    >>> program = quadratic(problem.workload.matrix, problem.answers, None)
    >>> _, x = program.solve(solver="CLARABEL"), program.var_dict["x"].value
    >>> problem.certify(problem.feasible(x), problem.as_dual(program.constraints[0].dual_value)).gap < 1e-6
    True
    """
    W, a = cp.Constant(queries, name="W"), cp.Constant(answers, name="a")
    x = cp.Variable(queries.shape[1], name="x", nonneg=True)
    r = cp.Variable(len(answers), name="r")
    totals = [] if total is None else [label("total", cp.sum(x) == total)]
    return cp.Problem(cp.Minimize(cp.sum_squares(r) / 2), [label("residual", W @ x - a == r), *totals])


@dataclass(frozen=True, slots=True, eq=False)
class _EstimateUnits:
    """A problem with answers and cells of order one."""

    problem: NonnegativeEstimate
    answer: float  # answer, cell: units of the answers, and of the numbers in cells
    cell: float

    @classmethod
    def of(cls, problem: NonnegativeEstimate) -> _EstimateUnits:
        """Scale by the judge's scale, and by the mean norm of a query's column."""
        answer = math.sqrt(2 * problem.scale)
        column = float(np.linalg.norm(problem.workload.row_norms())) / math.sqrt(problem.workload.shape[1])
        return cls(problem, answer, answer / column)

    @property
    def objective_unit(self) -> float:
        return self.answer**2

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.problem.workload.shape[1],)

    def covariance(self, inner: npt.ArrayLike | None, extra_cost: float = 0.0) -> Array:
        """Return an exactly feasible estimate from a vector or the diagonal of a matrix."""
        return self.problem.feasible(self.cell * entries(inner, "estimate"))

    def dual(self, residual: Array | None, estimate: Array | None) -> EstimateDual:
        """Return the multiplier of the residual, or the residual of least squares on the free cells.

        The one with the better bound is chosen. Before there is an answer, the multiplier is 0.
        """
        problem = self.problem
        if residual is None or estimate is None:
            return EstimateDual(np.zeros(len(problem.answers)))
        queries = problem.workload.dense()
        sizes = np.linalg.norm(queries, axis=0) * np.linalg.norm(residual)
        free_columns = queries[:, np.abs(queries.T @ residual) <= ORTHOGONAL_TOL * sizes]
        residual_of_fit = free_columns @ np.linalg.lstsq(free_columns, problem.answers, rcond=None)[0] - problem.answers
        candidates = [EstimateDual(self.answer * residual), EstimateDual(residual_of_fit)]
        data = self.covariance(estimate)
        return max(candidates, key=lambda candidate: problem.certify(data, candidate).lower_bound)


def _scaled_program(
    problem: NonnegativeEstimate, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram:
    scaled = _EstimateUnits.of(problem)
    program = quadratic(
        problem.workload.matrix * (scaled.cell / scaled.answer),
        problem.answers / scaled.answer,
        None if problem.total is None else problem.total / scaled.cell,
    )
    return attempts.ScaledProgram(
        program,
        scaled,
        covariance=lambda: program.var_dict["x"].value,
        dual=lambda: scaled.dual(program.constraints[0].dual_value, program.var_dict["x"].value),
    )


FORMULATIONS = attempts.Formulations(
    lambda _: {"qp": CONES},
    lambda problem, _: quadratic(problem.workload.matrix, problem.answers, problem.total),
    _scaled_program,
    formulas.estimate,
)


def quadratic_projection(
    matrix: Array, growth: float, floor: Array | None, total: float = 1.0, weight: float = 1.0
) -> cp.Problem:
    """State the projection onto the matrices whose columns sum to `total`, with `weight` on the squared distance.

    In formulas, and as a program: minimise ``‖Q - R‖² / 2`` over Q, z ≥ 0 subject to ``1'Q = 1'`` and ``z_o ≤ Q_ou ≤
    exp(ε) z_o``: local privacy. A floor fixes z.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.LocalProjection([[0.9, 0.1], [0.3, 0.5]], epsilon=1.0)
    >>> program = quadratic_projection(problem.matrix, problem.growth, None)
    >>> _, Q = program.solve(solver="CLARABEL"), program.var_dict["Q"].value
    >>> columns, least, most = [constraint.dual_value for constraint in program.constraints]
    >>> problem.certify(problem.feasible(Q), problem.dual_type(-columns, least - most)).gap < 1e-6
    True
    """
    R = cp.Constant(matrix, name="R")
    Q = cp.Variable(matrix.shape, name="Q")
    z = cp.Variable(len(matrix), name="z", nonneg=True) if floor is None else cp.Constant(floor, name="z")
    floors = cp.reshape(z, (len(matrix), 1), order="C") @ np.ones((1, matrix.shape[1]))
    return cp.Problem(
        cp.Minimize(weight / 2 * cp.sum_squares(Q - R)),
        [
            label("columns", cp.sum(Q, axis=0) == total),
            label("least", Q - floors >= 0),
            label("most", growth * floors - Q >= 0),
        ],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _ProjectionUnits:
    """A problem with probabilities in units of ``1/m``, and distances relative to a nearby strategy."""

    problem: LocalProjection
    matrix: Array  # (m, n) m R
    floor: Array | None  # (m,) m z
    objective_unit: float

    @classmethod
    def of(cls, problem: LocalProjection) -> _ProjectionUnits:
        count = len(problem.matrix)
        feasible_strategy = problem.feasible(problem.matrix)
        unit = problem.scale + float(np.square(feasible_strategy - problem.matrix).sum()) / 2
        return cls(problem, count * problem.matrix, None if problem.floor is None else count * problem.floor, unit)

    @property
    def weight(self) -> float:
        return 1 / (self.objective_unit * len(self.matrix) ** 2)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of a strategy, and the size of the identity at the start."""
        return (len(self.matrix),)

    def covariance(self, inner: npt.ArrayLike | None, extra_cost: float = 0.0) -> Array:
        """Return an exactly feasible strategy; `extra_cost` is not used."""
        strategy = returned_array(inner, "strategy")
        if strategy.shape != self.matrix.shape:
            strategy = np.ones(self.matrix.shape)
        return self.problem.feasible(strategy / len(self.matrix))


def _multipliers(program: cp.Problem, scaled: _ProjectionUnits) -> ProjectionDual:
    columns, lower, upper = (constraint.dual_value for constraint in program.constraints)
    if columns is None or lower is None or upper is None:
        return ProjectionDual(np.zeros(scaled.matrix.shape[1]))
    unit = scaled.objective_unit * len(scaled.matrix)
    return ProjectionDual(-unit * columns, unit * (lower - upper))


def _scaled_projection_program(
    problem: LocalProjection, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram:
    scaled = _ProjectionUnits.of(problem)
    program = quadratic_projection(scaled.matrix, problem.growth, scaled.floor, len(problem.matrix), scaled.weight)
    return attempts.ScaledProgram(
        program, scaled, covariance=lambda: program.var_dict["Q"].value, dual=lambda: _multipliers(program, scaled)
    )


PROJECTION_FORMULATIONS = attempts.Formulations(
    lambda _: {"qp": CONES},
    lambda problem, _: quadratic_projection(problem.matrix, problem.growth, problem.floor),
    _scaled_projection_program,
    formulas.projection,
)


ACCURACY = 1e-6  # of a backend, relative like a gap


def reconstruct(
    workload: Workload,
    strategy: npt.ArrayLike,
    *,
    prior: npt.ArrayLike | None = None,
    backend: str | Solver = "CLARABEL",
    **options: Any,
) -> Array:
    """Return the unbiased reconstruction V of minimum expected variance, computed by a backend.

    Minimise ``Σ_o (Q π)_o ‖V_o‖²`` over V (p, m) subject to ``V Q = W``. This definition is a check of the closed form
    in `dualmech.LocalMechanism`, ``V = W (Q'D⁻¹Q)⁺ Q'D⁻¹`` with ``D = diag(Q π)``.

    Raises `BackendError` for a backend that is not installed, refuses its options, fails, or finds no
    unbiased reconstruction; `InvalidInputError` or `InputTypeError` for a strategy of another width or with
    negative entries, or a prior that is no probability.
    Source: "Optimal V for fixed Q" in section 3 of McKenna, Maity, Mazumdar and Miklau, "A workload-adaptive mechanism
    for linear queries under local differential privacy", PVLDB 13(11), 2020.
    Returns an array (p, m).

    - `workload`: W, p queries over n user types;
    - `strategy` (m, n): Q ≥ 0, the probability of each output for each user type;
    - `prior` (n,): π, a probability over user types; uniform by default;
    - `backend`: an installed CVXPY backend;
    - `**options`: passed to the backend.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> reference.reconstruct(dm.workloads.identity(2), [[0.75, 0.25], [0.25, 0.75]]).round(6)
    array([[ 1.5, -0.5],
           [-0.5,  1.5]])
    """
    check_workload(workload)
    matrix, size = validate.finite(2, strategy=strategy), workload.shape[1]
    if matrix.shape[1] != size or np.any(matrix < 0):
        raise InvalidInputError(
            f"strategy must have {size} columns, one per user type, and no negative entry, got shape {matrix.shape} "
            f"and a least entry of {matrix.min():g}"
        )
    name = backends.backend_name(backend, CONES)
    program = quadratic_reconstruction(workload.dense(), matrix, as_prior(prior, size))
    outcome = backends.run(program, name, tol=ACCURACY, options=options)
    reconstruction = program.var_dict["V"].value
    if reconstruction is None:
        raise BackendError(f"the backend returned no reconstruction (backend {name}, status {outcome.status})")
    return np.asarray(reconstruction * np.linalg.norm(workload.dense()))


def quadratic_reconstruction(queries: Array, strategy: Array, prior: Array) -> cp.Problem:
    """State the reconstruction of queries scaled to norm 1; V is in units of that norm."""
    W, Q = cp.Constant(queries / np.linalg.norm(queries), name="W"), cp.Constant(strategy, name="Q")
    V = cp.Variable((len(queries), len(strategy)), name="V")
    roots = np.sqrt(len(prior) * strategy @ prior)
    return cp.Problem(
        cp.Minimize(cp.sum_squares(cp.multiply(V, np.broadcast_to(roots, V.shape)))), [label("unbiased", V @ Q == W)]
    )

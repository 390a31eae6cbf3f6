"""Several epochs through CVXPY: fitness for use and total variance for several participations per user.

Σ (k, k) is the covariance of the noise on B x, X its inverse, and ``B`` (k, n) the basis with a column for each step.
The rows of ``V`` (m, k) are the queries on B x, ``√w_j v_j`` for total variance. With ``C = B' Σ⁻¹ B``, the cost of a
phase p is the maximum of ``⟨C_p, R⟩`` over correlation matrices R. By duality it is the minimum ``1'd_p`` subject to
``diag(d_p) ⪰ C_p``; the multiplier of that inequality is ``m_p R_p``, the dual weights of the phase. For signs z the
cost is the maximum of ``z' C_p z``, with an inequality for each z, whose multipliers y give ``m_p R_p = Σ y z z'``. For
a minimum separation, each maximal set of participations is a phase; at most 200 sets are supported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech.errors import BackendError, InvalidInputError
from dualmech.geometry.apart import as_signs, persons_apart, walks_of_persons
from dualmech.geometry.epochs import Epochs, sign_rows
from dualmech.problems.base import AnyProblem, dual_of
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.reference import attempts, backends, cp, fitness
from dualmech.reference.attempts import label
from dualmech.reference.fitness import symmetric, variances
from dualmech.reference.scaling import Scaled, inverse, make_definite, returned_array, shares
from dualmech.validate import Array

Index = npt.NDArray[np.intp]

MAX_PERSONS = 200
"""Maximum number of sets of participations with a minimum separation."""

MAX_SIGNED_PARTICIPATIONS = 8
"""Maximum number of participations with an inequality for each choice of signs: with more, backends fail."""


def minimum(aim: fitness.Aim, basis: Array, queries: Array, phases: list[Index], parts: str = "vectors") -> cp.Problem:
    """State fitness for use, or privacy first, with Z in place of C.

        minimise α over Σ, Z, d subject to ``[[Σ, B], [B', Z]] ⪰ 0``, ``diag(d_p) ⪰ Z_p``, ``1'd_p ≤ α``,
        ``v_j Σ v_j' ≤ c_j``; for signs ``z' Z_p z ≤ α`` for all z, without d.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(4), neighbours="participation:2:2")
    >>> dense = problem.geometry.steps
    >>> program = minimum(fitness.accuracy_first(problem.targets), dense.basis, dense.representation, steps_of(problem))
    >>> _, Sigma = program.solve(solver="CLARABEL"), program.var_dict["Sigma"].value
    >>> weights = np.array([each.dual_value for each in program.constraints if each.label.startswith("phases")])
    >>> problem.certify(problem.feasible(Sigma), (weights, program.constraints[-1].dual_value)).gap < 1e-6
    True
    """
    B, L = cp.Constant(basis, name="B"), cp.Constant(queries, name="L")
    Sigma, Z = symmetric("Sigma", basis.shape[0]), symmetric("Z", basis.shape[1])
    return cp.Problem(
        cp.Minimize(aim.minimise),
        [
            label("schur", cp.bmat([[Sigma, B], [B.T, Z]]) >> 0),
            *_cost_limits(Z, phases, aim.cost_limit, parts),
            label("accuracy", variances(L, Sigma) <= aim.variance_limits),
        ],
    )


def minimum_total(basis: Array, queries: Array, phases: list[Index], parts: str = "vectors") -> cp.Problem:
    """State total variance: minimise ``tr Y`` over X, Y, d subject to ``[[X, V'], [V, Y]] ⪰ 0`` and limits on costs.

    The limits are ``diag(d_p) ⪰ (B' X B)_p``, ``1'd_p ≤ 1``; for signs ``z' (B' X B)_p z ≤ 1`` for all z.
    """
    B, V = cp.Constant(basis, name="B"), cp.Constant(queries, name="V")
    X, Y = symmetric("X", len(basis)), symmetric("Y", len(queries))
    return cp.Problem(
        cp.Minimize(cp.trace(Y)),
        [label("schur", cp.bmat([[X, V.T], [V, Y]]) >> 0), *_cost_limits(B.T @ X @ B, phases, 1, parts)],
    )


def _cost_limits(costs: cp.Expression, phases: list[Index], limit: Any, parts: str) -> list[cp.Constraint]:
    bounds = []
    for number, steps in enumerate(phases):
        block = costs[np.ix_(steps, steps)]
        if parts == "signs":
            signs = sign_rows(len(steps))
            pairs = np.einsum("zi,zj->zij", signs, signs).reshape(len(signs), -1)
            bounds.append(label(f"phases[{number}]", pairs @ cp.vec(block, order="C") <= limit))
            continue
        d = cp.Variable(len(steps), name=f"d[{number}]")
        bounds.append(label(f"phases[{number}]", cp.diag(d) - (block + block.T) / 2 >> 0))
        bounds.append(label(f"privacy[{number}]", cp.sum(d) <= limit))
    return bounds


def steps_of(problem: AnyProblem) -> list[Index]:
    """Return the steps of each phase, or of each maximal set of participations with a minimum separation.

    Raises `InvalidInputError` if there are too many sets.
    """
    rule, steps = problem.geometry.neighbours, problem.workload.shape[1]
    if rule.at_least:
        persons = persons_apart(steps, rule.times, rule.separation, MAX_PERSONS)
        if len(persons) > MAX_PERSONS:
            raise InvalidInputError(
                f"neighbours ({rule}) must have at most {MAX_PERSONS} sets of participations, each with an inequality; "
                "the fast layer bounds the optimum, and crosscheck.judge certifies the gap of any noise"
            )
        return persons
    return [steps[steps >= 0] for steps in problem.geometry.phases]


@dataclass(frozen=True, eq=False)
class PhaseUnits:
    """The problem in the units of the problem for one record."""

    problem: AnyProblem

    @cached_property
    def scaled(self) -> Scaled:
        return Scaled.of(self.problem.for_one_record())

    @property
    def moves(self) -> Array:
        """The basis in these units, with a column for each step, shape (r, n)."""
        all_columns = np.zeros((len(self.scaled.moves), self.problem.geometry.steps.moves.shape[1]))
        all_columns[:, self.scaled.kept_moves] = self.scaled.moves
        return all_columns

    @property
    def sizes(self) -> tuple[int, int, int]:
        return sum(self.counts), len(self.scaled.queries), len(self.scaled.moves)

    @property
    def counts(self) -> list[int]:
        signs = self.problem.geometry.neighbours.parts == "signs"
        return [2 ** (len(steps) - 1) if signs else len(steps) ** 2 for steps in steps_of(self.problem)]

    @property
    def objective_unit(self) -> float:
        """The unit of the objective."""
        return self.scaled.unit

    def covariance(self, inner: npt.ArrayLike | None, extra_cost: float = 0.0) -> Array:
        """Return a backend's Σ in the problem's basis, feasible, with `extra_cost` added as in `Scaled.covariance`."""
        noise = make_definite(returned_array(inner))
        if extra_cost > 0:
            scaled_limit = self.scaled.moves @ self.scaled.moves.T / extra_cost
            noise = noise @ np.linalg.solve(noise + scaled_limit, scaled_limit)
        problem_noise = self.scaled.lift @ noise @ self.scaled.lift.T
        return np.asarray(self.problem.feasible((problem_noise + problem_noise.T) / 2))

    def weights(self, multipliers: Array) -> Array:
        geometry: Epochs = self.problem.geometry
        rule, persons = geometry.neighbours, steps_of(self.problem)
        matrices = []
        for steps, person_multipliers in zip(persons, np.split(multipliers, np.cumsum(self.counts)[:-1]), strict=True):
            if rule.parts == "signs":
                rows = sign_rows(len(steps))
                matrices.append((rows.T * np.maximum(person_multipliers, 0.0)) @ rows)
            else:
                matrices.append(person_multipliers.reshape(len(steps), len(steps)))
        masses = sum(float(np.diagonal(matrix).max()) for matrix in matrices)
        if not (all(np.all(np.isfinite(matrix)) for matrix in matrices) and masses > 0):
            raise BackendError("the backend returned no multipliers to judge")
        if rule.at_least:
            walks = walks_of_persons(persons, matrices, geometry.phases.shape[1])
            return np.array([walks[0], as_signs(walks[1:])[0]]) if rule.parts == "signs" else walks
        times = geometry.phases.shape[1]
        blocks = np.array([np.pad(matrix, (0, times - len(matrix))) for matrix in matrices])
        return (as_signs(blocks) if rule.parts == "signs" else blocks) / masses

    def dual(self, phases: Array, accuracy: Array | None = None) -> Any:
        query_shares = np.zeros(len(self.problem.row_targets))
        if accuracy is not None:
            query_shares[self.scaled.kept_queries] = shares(accuracy)
        return dual_of(self.problem, self.weights(phases), query_shares)


def _write(problem: FitnessForUse | PrivacyFirst | TotalVariance, formulation: str) -> cp.Problem:
    _check_size(problem)
    dense = problem.geometry.steps
    if isinstance(problem, TotalVariance):
        rows = dense.representation * np.sqrt(problem.row_weights)[:, None]
        return minimum_total(dense.basis, rows, steps_of(problem), problem.geometry.neighbours.parts)
    return minimum(
        fitness.aim_of(problem, problem.targets),
        dense.basis,
        dense.representation,
        steps_of(problem),
        problem.geometry.neighbours.parts,
    )


def _scaled_program(
    problem: FitnessForUse | TotalVariance, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram:
    _check_size(problem)
    units, parts = PhaseUnits(problem), problem.geometry.neighbours.parts
    phases, queries = steps_of(problem), units.scaled.queries
    if isinstance(problem, TotalVariance):
        program = minimum_total(units.moves, queries, phases, parts)
        return attempts.ScaledProgram(
            program, units, lambda: inverse(program.var_dict["X"].value), units.dual, constraints=("phases",)
        )
    aim = fitness.accuracy_first(np.ones(len(queries)))
    program = minimum(aim, units.moves, queries, phases, parts)
    constraints, sigma = ("phases", "accuracy"), program.var_dict["Sigma"]
    return attempts.ScaledProgram(
        program, units, lambda: sigma.value, units.dual, constraints, optimum=lambda _: aim.optimum
    )


FORMULATIONS = attempts.Formulations(lambda _: {"schur": backends.SEMIDEFINITE}, _write, _scaled_program)


def _check_size(problem: AnyProblem) -> None:
    steps_of(problem)
    if problem.geometry.neighbours.parts == "signs" and problem.geometry.neighbours.times > MAX_SIGNED_PARTICIPATIONS:
        raise InvalidInputError(
            f"neighbours ({problem.geometry.neighbours}) must have at most {MAX_SIGNED_PARTICIPATIONS} participations: "
            "the program has an inequality for each choice of signs; the fast layer bounds the optimum"
        )

"""Several epochs through CVXPY: fitness for use and total variance where persons take part in every step of a phase.

Throughout, Σ (k, k) is the covariance of the noise on B x, X its inverse, ``B`` (k, n) the basis with a column for each
step, ``V`` (m, k) the queries on B x in its rows, ``√w_j v_j`` for total variance. A phase p costs the largest
``⟨C_p, R⟩`` over correlation matrices R, with ``C = B' Σ⁻¹ B``. That is, by duality, the least ``1'd_p`` subject to
``diag(d_p) ⪰ C_p``: the multiplier of that inequality is ``m_p R_p``, the dual weights of the phase. Of signs z it
costs the largest ``z' C_p z``, an inequality for each, whose multipliers y have ``m_p R_p = Σ y z z'``. Where parts
need only be so far apart, each set of steps to which no part can be added is such a phase: some hundred at most.
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

MOST_PERSONS = 200
"""Persons whose parts are at least so far apart up to which each is stated."""

MOST_SIGNS = 8
"""Parts of a person up to which the signs are stated one by one: with more, backends fail."""


def least(aim: fitness.Aim, basis: Array, queries: Array, phases: list[Index], parts: str = "vectors") -> cp.Problem:
    """State fitness for use, or privacy first: Z stands for C, and no phase costs more than the aim allows.

        minimise α over Σ, Z, d subject to ``[[Σ, B], [B', Z]] ⪰ 0``, ``diag(d_p) ⪰ Z_p``, ``1'd_p ≤ α``,
        ``v_j Σ v_j' ≤ c_j``; of signs ``z' Z_p z ≤ α`` for all z, without d.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(4), neighbours="participation:2:2")
    >>> dense = problem.geometry.steps
    >>> program = least(fitness.accuracy_first(problem.targets), dense.basis, dense.representation, steps_of(problem))
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
            *_paid(Z, phases, aim.cost_limit, parts),
            label("accuracy", variances(L, Sigma) <= aim.variance_limits),
        ],
    )


def least_total(basis: Array, queries: Array, phases: list[Index], parts: str = "vectors") -> cp.Problem:
    """State total variance: minimise ``tr Y`` over X, Y, d subject to ``[[X, V'], [V, Y]] ⪰ 0`` and the phases' costs.

    They are ``diag(d_p) ⪰ (B' X B)_p``, ``1'd_p ≤ 1``; of signs ``z' (B' X B)_p z ≤ 1`` for all z.
    """
    B, V = cp.Constant(basis, name="B"), cp.Constant(queries, name="V")
    X, Y = symmetric("X", len(basis)), symmetric("Y", len(queries))
    return cp.Problem(
        cp.Minimize(cp.trace(Y)),
        [label("schur", cp.bmat([[X, V.T], [V, Y]]) >> 0), *_paid(B.T @ X @ B, phases, 1, parts)],
    )


def _paid(costs: cp.Expression, phases: list[Index], limit: Any, parts: str) -> list[cp.Constraint]:
    """Return the inequalities by which no phase costs more than a limit."""
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
    """Return the steps of each phase, or of each person at least so far apart; refused where these are too many."""
    rule, steps = problem.geometry.neighbours, problem.workload.shape[1]
    if rule.at_least:
        persons = persons_apart(steps, rule.times, rule.separation, MOST_PERSONS)
        if len(persons) > MOST_PERSONS:
            raise InvalidInputError(
                f"neighbours ({rule}) must be at most {MOST_PERSONS} persons, each with its own inequality; the fast "
                "layer bounds the optimum, and crosscheck.judge says how far any noise is from it"
            )
        return persons
    return [steps[steps >= 0] for steps in problem.geometry.phases]


@dataclass(frozen=True, eq=False)
class PhaseUnits:
    """The problem in units of order one: those of one record, whose noise is on the same basis."""

    problem: AnyProblem

    @cached_property
    def scaled(self) -> Scaled:
        return Scaled.of(self.problem.for_one_record())

    @property
    def moves(self) -> Array:
        """The basis in these units, a column for each step (r, n)."""
        whole = np.zeros((len(self.scaled.moves), self.problem.geometry.steps.moves.shape[1]))
        whole[:, self.scaled.kept_moves] = self.scaled.moves
        return whole

    @property
    def sizes(self) -> tuple[int, int, int]:
        return sum(self.counts), len(self.scaled.queries), len(self.scaled.moves)

    @property
    def counts(self) -> list[int]:
        signs = self.problem.geometry.neighbours.parts == "signs"
        return [2 ** (len(steps) - 1) if signs else len(steps) ** 2 for steps in steps_of(self.problem)]

    @property
    def objective_unit(self) -> float:
        """The problem's objective that is 1 in these units."""
        return self.scaled.unit

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> Array:
        """Return a backend's Σ on the problem's basis, feasible; `spare` adds as much cost, in these units."""
        noise = make_definite(returned_array(inner))
        if spare > 0:
            share = self.scaled.moves @ self.scaled.moves.T / spare
            noise = noise @ np.linalg.solve(noise + share, share)
        lifted = self.scaled.lift @ noise @ self.scaled.lift.T
        return np.asarray(self.problem.feasible((lifted + lifted.T) / 2))

    def weights(self, multipliers: Array) -> Array:
        geometry: Epochs = self.problem.geometry
        rule, persons = geometry.neighbours, steps_of(self.problem)
        matrices = []
        for steps, held in zip(persons, np.split(multipliers, np.cumsum(self.counts)[:-1]), strict=True):
            if rule.parts == "signs":
                rows = sign_rows(len(steps))
                matrices.append((rows.T * np.maximum(held, 0.0)) @ rows)
            else:
                matrices.append(held.reshape(len(steps), len(steps)))
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
    _refuse_others(problem)
    dense = problem.geometry.steps
    if isinstance(problem, TotalVariance):
        rows = dense.representation * np.sqrt(problem.row_weights)[:, None]
        return least_total(dense.basis, rows, steps_of(problem), problem.geometry.neighbours.parts)
    return least(
        fitness.aim_of(problem, problem.targets),
        dense.basis,
        dense.representation,
        steps_of(problem),
        problem.geometry.neighbours.parts,
    )


def _scaled_program(
    problem: FitnessForUse | TotalVariance, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram:
    _refuse_others(problem)
    units, parts = PhaseUnits(problem), problem.geometry.neighbours.parts
    phases, queries = steps_of(problem), units.scaled.queries
    if isinstance(problem, TotalVariance):
        program = least_total(units.moves, queries, phases, parts)
        return attempts.ScaledProgram(
            program, units, lambda: inverse(program.var_dict["X"].value), units.dual, constraints=("phases",)
        )
    aim = fitness.accuracy_first(np.ones(len(queries)))
    program = least(aim, units.moves, queries, phases, parts)
    constraints, sigma = ("phases", "accuracy"), program.var_dict["Sigma"]
    return attempts.ScaledProgram(
        program, units, lambda: sigma.value, units.dual, constraints, optimum=lambda _: aim.optimum
    )


FORMULATIONS = attempts.Formulations(lambda _: {"schur": backends.SEMIDEFINITE}, _write, _scaled_program)


def _refuse_others(problem: AnyProblem) -> None:
    steps_of(problem)
    if problem.geometry.neighbours.parts == "signs" and problem.geometry.neighbours.times > MOST_SIGNS:
        raise InvalidInputError(
            f"neighbours ({problem.geometry.neighbours}) must have at most {MOST_SIGNS} parts: the program has an "
            "inequality for each choice of their signs; the fast layer bounds the optimum"
        )

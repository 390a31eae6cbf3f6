"""The refined privacy ordering through CVXPY: a small program per stage, on the optimal face of the previous stages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

from dualmech import validate
from dualmech.errors import BackendError
from dualmech.geometry.weights import FitnessDual
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.refinement import Refinement, RefinementStage, accuracy_first
from dualmech.problems.refinement import refine as refine_by_stages
from dualmech.reference import attempts, backends, cp, fitness
from dualmech.reference.formulas import mechanisms as formulas
from dualmech.reference.scaling import Scaled, make_definite, shares
from dualmech.validate import Array
from dualmech.watching import verbosely

if TYPE_CHECKING:
    from cvxpy.reductions.solvers.solver import Solver

STAGE_TOLERANCES = {"CLARABEL": 1e-10, "SCS": 1e-8}
"""Tolerance of a backend in a stage, which the next stage inherits."""

OTHER_STAGE_TOLERANCE = 1e-8  # the same for other backends
NUM_PASSES = 3  # of a stage, each in coordinates that make the last answer the identity

TOLERANCES = {"CLARABEL": 1e-6}
"""Default gap to prove in every stage; for other backends see `backends.tolerance`."""


def schur(offsets: Array, slack: Array, moves: Array, rows: Array) -> cp.Problem:
    """State one stage over M (r, r), called ``Sigma``: the noise that earlier stages have not determined.

    In formulas: minimise ``max_i o_i + b_i' M⁻¹ b_i`` over ``M ≻ 0`` subject to ``v_j M v_j' ≤ c_j - a_j``, where the
    fixed noise has cost o_i and leaves the slack ``c - a``. As a program: the program of `fitness.schur`, with
    ``Z_ii ≤ α - o_i``.

    Examples
    --------
    >>> import dualmech as dm
    >>> stage = dm.results.RefinementStage(dm.FitnessForUse(dm.workloads.prefix(2)), np.zeros((2, 0)), np.eye(2))
    >>> program = schur(stage.costs, stage.slack, stage.moves, stage.rows)
    >>> _, M = program.solve(solver="CLARABEL"), program.var_dict["Sigma"].value
    >>> weights = [constraint.dual_value for constraint in program.constraints[1:]]
    >>> stage.certify(stage.covariance(M), FitnessDual(*weights)).gap < 1e-6
    True
    """
    alpha = cp.Variable(name="alpha")
    aim = fitness.Aim(alpha, alpha - cp.Constant(offsets, name="o"), cp.Constant(slack, name="c - a"))
    return fitness.schur(aim, moves, rows)


def refine(
    problem: FitnessForUse | PrivacyFirst,
    *,
    backend: str | Solver = "CLARABEL",
    tol: float | None = None,
    time_limit: float | None = None,
    verbose: bool = False,
    **options: Any,
) -> Refinement:
    """Return the one optimal covariance that is least in the refined privacy ordering, stage by stage.

    Among all optimal covariances, the one whose privacy profile, sorted in decreasing order, comes first in
    lexicographic order (Definition 5). Limiting each tight cost to its value and minimising the next would leave no
    strictly feasible point; instead, each stage is a program on the face of all optima of the previous stage. Returns a
    `Refinement` with the covariance, its profile, and a judged `Solution` for every stage. Raises `BackendError` for a
    backend that is not installed, does not support the cones, fails, or returns no answer; `InvalidInputError` or
    `InputTypeError` for another problem, or a tolerance that is not positive.

    - `problem`: the problem;
    - `backend`: an installed CVXPY backend for semidefinite cones;
    - `tol`: gap to prove in every stage, by default 1e-6 with CLARABEL; stages are solved more accurately;
    - `time_limit`: seconds after which the current covariance is returned, with the current stage unproven (CLARABEL,
      SCS);
    - `verbose`: whether to show the current run, and its seconds, in a line on standard error;
    - `**options`: passed to the backend.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> problem = dm.FitnessForUse(dm.Workload([[1, 0, 0], [1, 1, 0], [0, 0, 1]]), targets=[1, 1, 4])
    >>> answer = reference.refine(problem)
    >>> answer.profile.round(6), len(answer.stages), answer.certified
    (array([1.333333, 1.333333, 0.25    ]), 2, True)
    """
    name = backends.backend_name(backend)
    if tol is None:
        tol = TOLERANCES.get(name, backends.tolerance(name))
    tol = validate.positive_number(tol=tol)
    accuracy = min(tol, STAGE_TOLERANCES.get(name, OTHER_STAGE_TOLERANCE))

    request = attempts.BackendRequest.of(name, backends.SEMIDEFINITE, accuracy, time_limit, options)
    with verbosely(verbose, f"{name}: refinement"):
        directions = Scaled.of(accuracy_first(problem)).lift
        return refine_by_stages(
            problem,
            directions,
            partial(_solve, request=request),
            tol=tol,
            solver=f"reference:{name}:refine",
            deadline=request.deadline,
        )


def _write(stage: RefinementStage, formulation: str) -> cp.Problem:
    moves, rows = stage.moves[:, stage.neighbours], stage.rows[stage.queries]
    return schur(stage.costs[stage.neighbours], stage.slack[stage.queries], moves, rows)


FORMULATIONS = attempts.Formulations(lambda _: {"schur": backends.SEMIDEFINITE}, _write, None, formulas.stage)


def _solve(stage: RefinementStage, request: attempts.BackendRequest) -> tuple[Array, FitnessDual, int]:
    """Solve a stage several times, in coordinates that make the last answer the identity; return the best answer."""
    answers: list[tuple[Array, FitnessDual]] = []
    gaps: list[float] = []
    iterations = 0
    factor: Array = np.eye(stage.open.shape[1])
    for _ in range(NUM_PASSES):
        if answers and request.deadline.passed:
            break
        try:
            inner, dual, count = _solve_once(stage, factor, request)
        except BackendError:
            if not answers:
                raise
            break
        iterations += count
        answers.append((inner, dual))
        gaps.append(stage.certify(stage.covariance(inner), dual).gap)
        factor = scipy.linalg.cholesky(inner, lower=True)
    return *answers[int(np.argmin(gaps))], iterations


def _solve_once(
    stage: RefinementStage, factor: Array, request: attempts.BackendRequest
) -> tuple[Array, FitnessDual, int]:
    """Run a backend on a stage in coordinates that make ``factor factor'`` I, with costs and variances near 1."""
    offsets, slack = stage.costs[stage.neighbours], stage.slack[stage.queries]
    moves = scipy.linalg.solve_triangular(factor, stage.moves[:, stage.neighbours], lower=True)
    rows = stage.rows[stage.queries] @ factor / np.sqrt(slack)[:, None]
    variance = float(np.einsum("jk,jk->j", rows, rows).max())
    unit = float((np.einsum("ki,ki->i", moves, moves) * variance + offsets).max())
    inner_moves, inner_rows = moves * np.sqrt(variance / unit), rows / np.sqrt(variance)
    program = schur(offsets / unit, np.ones(len(rows)), inner_moves, inner_rows)
    outcome = backends.run(
        program, request.backend, tol=request.tol, deadline=request.deadline, options=request.options
    )
    noise = program.var_dict["Sigma"].value
    if noise is None or not np.all(np.isfinite(noise)):
        raise BackendError(f"the backend {request.backend} returned no covariance to judge (status {program.status})")
    noise = make_definite(np.asarray(noise, dtype=np.float64))
    noise = factor @ (noise / np.einsum("jk,jk->j", inner_rows @ noise, inner_rows).max()) @ factor.T / variance
    privacy, accuracy = (attempts.multipliers(program, name) for name in ("privacy", "accuracy"))
    return (noise + noise.T) / 2, stage.spread(shares(privacy), shares(accuracy)), outcome.iterations

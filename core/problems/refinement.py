"""The minimum of the refined privacy ordering: one answer, its profile, and a certificate for every stage."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dualmech.errors import InputTypeError, InvalidInputError, UncertifiedWarning
from dualmech.geometry.base import FitnessDual
from dualmech.geometry.dense_forms import evaluate
from dualmech.problems.faces import next_stage
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.stages import RefinementStage
from dualmech.progress import NEVER, Deadline, Status
from dualmech.solution import Solution, judged_solution, retold
from dualmech.validate import Array

if TYPE_CHECKING:
    from dualmech.mechanisms.gaussian import LinearGaussianMechanism

StageSolver = Callable[[RefinementStage], tuple[Array, FitnessDual, int]]
"""Returns an optimal M (r, r) of a stage, scaled to its targets, weights that prove it, and the steps it took."""


@dataclass(frozen=True, slots=True, eq=False)
class Refinement:
    """The one optimal covariance whose sorted privacy profile is least, lexicographically.

    Source: definition 5 and Theorem 11 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of
    differentially private linear queries", PVLDB 14(10), 2021: the minimum is unique.

    Attributes
    ----------
    solution : Solution
        Of the problem itself: the refined covariance, and the weights that prove its cost.
    stages : tuple of Solution
        One per stage, over its `RefinementStage` and the same covariance (in the units of `FitnessForUse`): each
        certifies that, on the face that the earlier stages leave, no covariance has a smaller worst cost of the
        neighbours that were still open.
    """

    solution: Solution
    stages: tuple[Solution, ...]

    @property
    def covariance(self) -> Array:
        """Covariance of the noise on B x (k, k)."""
        return np.asarray(self.solution.primal)

    @property
    def profile(self) -> Array:
        """Squared privacy cost of each pair of neighbours (s,)."""
        return evaluate(accuracy_first(self.solution.problem), self.covariance).profile

    @property
    def mechanism(self) -> LinearGaussianMechanism:
        """The mechanism to release with."""
        return self.solution.mechanism

    @property
    def certified(self) -> bool:
        """Whether every stage, and the answer as a whole, is proven to the tolerance."""
        return all(each.status is Status.CERTIFIED for each in (self.solution, *self.stages))

    @property
    def gap(self) -> float:
        """The largest gap of all stages."""
        return max(each.gap for each in (self.solution, *self.stages))


def refine(
    problem: FitnessForUse | PrivacyFirst,
    directions: Array,
    solve: StageSolver,
    *,
    tol: float,
    solver: str,
    deadline: Deadline = NEVER,
) -> Refinement:
    """Solve stage after stage until nothing is open; the caller supplies the solver.

    - `problem`: what is asked;
    - `directions` (k, r): columns that span all B u_i, chosen so that an optimal M on them is not far from the
      identity;
    - `solve`: solves one stage as accurately as it can: errors of a stage are inherited by the next;
    - `tol`: gap to prove in every stage;
    - `solver`: name for the solutions;
    - `deadline`: after which no stage is begun but the first; what is open then stays so, and counts as unproven.
    """
    began, whole = time.perf_counter(), accuracy_first(problem)
    stage = RefinementStage(whole, np.zeros((len(directions), 0)), directions)
    solved: list[tuple[RefinementStage, FitnessDual, int]] = []
    with np.errstate(all="ignore"):
        while not stage.finished and not (solved and deadline.passed):
            try:
                inner, dual, steps = solve(stage)
            except np.linalg.LinAlgError:
                # A stage that doubles do not hold stays open, and counts as unproven.
                if not solved:
                    raise
                break
            solved.append((stage, dual, steps))
            point = stage.covariance(inner)
            try:
                stage = next_stage(stage, inner, dual, stage.certify(point, dual).gap)
            except np.linalg.LinAlgError:
                # Numerically singular noise has no square root to go on with; the judge says what that is worth.
                break
            point = stage.covariance()
        covariance = whole.feasible(point)
    reason = Status.STEPS_EXHAUSTED if deadline.passed else Status.STALLED
    judge = partial(judged_solution, tol=tol, otherwise=reason, solver=solver)
    stages = tuple(judge(each, covariance, dual, iterations=steps) for each, dual, steps in solved)
    total, seconds = sum(steps for _, _, steps in solved), time.perf_counter() - began
    first = solved[0][1]
    answer = Refinement(
        judge(problem, problem.feasible(covariance), first, iterations=total, seconds=seconds),
        _proven_in_order(stages, stage.finished),
    )
    if not answer.certified:
        warnings.warn(
            f"{solver}: a stage is proven to {answer.gap:.1e} where {tol:.1e} was asked",
            UncertifiedWarning,
            stacklevel=3,
        )
    return answer


def _proven_in_order(stages: tuple[Solution, ...], finished: bool) -> tuple[Solution, ...]:
    """Return the stages, those after the first unproven one marked unproven too: their face is uncertain."""
    proven = list(itertools.takewhile(lambda stage: stage.status is Status.CERTIFIED, stages))
    rest = list(stages[len(proven) :])
    if not rest and not finished:
        proven, rest = proven[:-1], proven[-1:]
    message = "An earlier stage is not proven, so the face of this one is in doubt."
    doubtful = [
        retold(stage, status=Status.STALLED, message=message) if stage.status is Status.CERTIFIED else stage
        for stage in rest
    ]
    return (*proven, *doubtful)


def accuracy_first(problem: FitnessForUse | PrivacyFirst) -> FitnessForUse:
    """Return the problem whose optima are refined; `InputTypeError` for anything else."""
    if not isinstance(problem, FitnessForUse | PrivacyFirst):
        raise InputTypeError(f"problem must be FitnessForUse or PrivacyFirst, got {type(problem).__name__}")
    if problem.geometry.name != "dense":
        raise InvalidInputError(
            f"refine takes geometry 'dense', got {problem.geometry.name!r}: stages are found on a matrix; state the "
            f"problem with geometry='dense' where there can be one (on marginals every record costs the same anyway)"
        )
    return problem.accuracy_first if isinstance(problem, PrivacyFirst) else problem

"""The minimum of the refined privacy ordering: one answer, its profile, and a certificate for every stage."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dualmech.errors import InputTypeError, UncertifiedWarning
from dualmech.problems.evaluation import FitnessDual, evaluate
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.refinement import RefinementStage
from dualmech.solution import Solution, Status, judged
from dualmech.validate import Array

if TYPE_CHECKING:
    from dualmech.mechanism import LinearGaussianMechanism

StageSolver = Callable[[RefinementStage], tuple[Array, FitnessDual]]
"""Returns an optimal M (r, r) of a stage, scaled to its targets, and weights that prove it."""


@dataclass(frozen=True, slots=True, eq=False)
class Refinement:
    """The one optimal covariance whose sorted privacy profile is least, lexicographically.

    Attributes
    ----------
    solution : Solution
        Of the problem itself: the refined covariance, and the weights that prove its cost.
    stages : tuple of Solution
        One a stage, over its `RefinementStage` and the same covariance (in the units of `FitnessForUse`): each
        certifies that, on the face that the earlier stages leave, no covariance has a smaller worst cost of the
        neighbours that were still open.

    Notes
    -----
    Definition 5 and Theorem 11 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of
    differentially private linear queries", PVLDB 14(10), 2021: the minimum is unique.
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
    problem: FitnessForUse | PrivacyFirst, directions: Array, solve: StageSolver, *, tol: float, solver: str
) -> Refinement:
    """Solve stage after stage until nothing is open; the layers bring the solver.

    Parameters
    ----------
    problem : FitnessForUse or PrivacyFirst
        What is asked.
    directions : (k, r) array
        Columns that span all B u_i, chosen so that an optimal M on them is not far from the identity.
    solve : callable
        Solves one stage as accurately as it can: errors of a stage are inherited by the next.
    tol : float
        Gap to prove in every stage.
    solver : str
        Name for the solutions.
    """
    whole = accuracy_first(problem)
    stage = RefinementStage(whole, np.zeros((len(directions), 0)), directions)
    solved: list[tuple[RefinementStage, FitnessDual]] = []
    while not stage.finished:
        inner, dual = solve(stage)
        solved.append((stage, dual))
        stage = stage.settle(inner, dual, stage.certify(stage.covariance(inner), dual).gap)
    covariance = whole.feasible(stage.covariance())
    account = {"tol": tol, "otherwise": Status.STALLED, "solver": solver}
    stages = tuple(judged(each, covariance, dual, **account) for each, dual in solved)
    answer = Refinement(
        judged(problem, problem.feasible(covariance), solved[0][1], iterations=len(stages), **account), stages
    )
    if not answer.certified:
        warnings.warn(
            f"{solver}: a stage is proven to {answer.gap:.1e} where {tol:.1e} was asked",
            UncertifiedWarning,
            stacklevel=3,
        )
    return answer


def accuracy_first(problem: FitnessForUse | PrivacyFirst) -> FitnessForUse:
    """Return the problem whose optima are refined; `InputTypeError` for anything else."""
    if isinstance(problem, PrivacyFirst):
        return problem.accuracy_first
    if isinstance(problem, FitnessForUse):
        return problem
    raise InputTypeError(f"problem must be FitnessForUse or PrivacyFirst, got {type(problem).__name__}")

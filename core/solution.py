"""What a solver returns: an answer, the judge's certificate, and why it is or is not certified."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualmech.certificate import Certificate
from dualmech.errors import InfeasibleAnswerError, InputTypeError, UncertifiedWarning
from dualmech.validate import Array


class Status(Enum):
    """Why a solver stopped; each value says what it means and what to do."""

    CERTIFIED = "The judge proved the answer within the tolerance of the optimum."
    STEPS_EXHAUSTED = (
        "The steps or the time allowed ran out first. The answer is the best found and its gap is proven; "
        "allow more steps, or ask for a larger tolerance."
    )
    STALLED = (
        "Steps stopped to improve the gap, usually at the limit of double precision. The answer is the best "
        "found and its gap is proven; ask for a larger tolerance, or rescale targets that differ widely."
    )
    ROUNDING = (
        "What is left of the gap is no more than was asked, or no more than rounding in its evaluation may hide. "
        "Ask for a tolerance above the certificate's resolution, or rescale what differs widely."
    )
    BACKEND = (
        "The backend ended its own way; what it returned was repaired to feasibility and judged. Tighten the "
        "backend's own tolerances, choose another backend or formulation, or use the fast layer."
    )
    NON_FINITE = (
        "Numbers stopped being finite during the solve. The answer is the best one before that; rescale the "
        "workload and its targets."
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress report of a running solver, passed to its `callback`; `iteration` counts decompositions."""

    iteration: int
    objective: float
    lower_bound: float
    gap: float
    seconds: float


Callback = Callable[[Progress], None]


class ProblemProtocol(Protocol):
    """What a solution needs of its problem: the judge, and how to read an answer."""

    def certify(self, primal: Any, dual: Any) -> Certificate:
        """Judge a primal point and dual weights."""

    def mechanism(self, primal: Any) -> Any:
        """Build the mechanism that a primal point describes."""

    def prices(self, dual: Any) -> Array:
        """Share of each query in the privacy cost."""

    def binding(self, primal: Any, slack: float) -> npt.NDArray[np.intp]:
        """Indices of the neighbours whose cost is within `slack` of the largest."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """An answer with its certificate; the certificate is made by the problem, never by the solver.

    Attributes
    ----------
    problem, primal, dual
        What was asked, and the two sides of the answer, enough to check it again.
    certificate : Certificate
        Objective, proven bound, gap, violation and resolution.
    tol : float
        The gap that was asked for.
    status : Status
        ``CERTIFIED``, or why not; `message` adds the solver's own words.
    iterations, seconds, solver
        How it was found. The fast layer counts eigendecompositions.
    """

    problem: Any
    primal: Any
    dual: Any
    certificate: Certificate
    tol: float
    status: Status
    message: str = ""
    iterations: int = 0
    seconds: float = 0.0
    solver: str = ""
    history: tuple[Progress, ...] = field(default=(), repr=False)

    @property
    def objective(self) -> float:
        """Objective of the primal point, recomputed by the problem."""
        return self.certificate.objective

    @property
    def lower_bound(self) -> float:
        """Bound on the optimum, proven by `dual`."""
        return self.certificate.lower_bound

    @property
    def gap(self) -> float:
        """Relative distance from the optimum that remains possible."""
        return self.certificate.gap

    @property
    def mechanism(self) -> Any:
        """The mechanism to release with; raises `InfeasibleAnswerError` where the answer is infeasible.

        A `LinearGaussianMechanism`; for local privacy a `LocalMechanism`; on geometry ``blocks`` a `BlockMechanism`, on
        ``product`` a `ProductMechanism`, on ``split`` a `SplitMechanism`.
        """
        if not self.certificate.feasible:
            raise InfeasibleAnswerError(
                f"no mechanism: the answer exceeds a constraint by {self.certificate.violation:.2e} "
                f"(status {self.status.name})"
            )
        return self.problem.mechanism(self.primal)

    @property
    def prices(self) -> Array:
        """Share of each query in the cost (m,); sums to 1.

        To first order, a target loosened by the small fraction t lowers the squared privacy cost by the
        fraction ``prices[j] · t``; a weight raised by it raises the total variance by that fraction.
        """
        prices: Array = self.problem.prices(self.dual)
        return prices

    @property
    def binding(self) -> npt.NDArray[np.intp]:
        """Indices of the neighbours that bind: their cost is the largest, up to what the gap leaves open.

        A slack below ``max(1e-6, √gap)``, relative to the objective, counts as binding: with a gap g, a
        neighbour of dual weight w can be slack by g/w at most.
        """
        indices: npt.NDArray[np.intp] = self.problem.binding(self.primal, max(1e-6, self.gap**0.5))
        return indices


def judged_solution(
    problem: Any,
    primal: Any,
    dual: Any,
    *,
    tol: float,
    otherwise: Status,
    message: str = "",
    iterations: int = 0,
    seconds: float = 0.0,
    solver: str = "",
    history: tuple[Progress, ...] = (),
) -> Solution:
    """Let the problem judge an answer and wrap both.

    `otherwise` is the status of an answer that the judge did not certify, so it cannot be CERTIFIED itself.
    """
    if otherwise is Status.CERTIFIED:
        raise ValueError("only the judge certifies: otherwise must be another status")
    certificate = problem.certify(primal, dual)
    status = Status.CERTIFIED if certificate.certifies(tol) else otherwise
    if status is not Status.CERTIFIED and certificate.gap <= max(tol, certificate.resolution):
        status = Status.ROUNDING
    return Solution(
        problem, primal, dual, certificate, tol, status, message, iterations, seconds, solver, history
    )


def require_solution(answer: Any) -> Solution:
    """Return a solution; refuse anything else."""
    if not isinstance(answer, Solution):
        raise InputTypeError(f"answer must be a dualmech.Solution, got {type(answer).__name__}")
    return answer


def transfer(answer: Solution, problem: Any, primal: Any, dual: Any) -> Solution:
    """Return an answer as that of another problem, judged anew; iterations, seconds and solver are kept."""
    return judged_solution(
        problem,
        primal,
        dual,
        tol=answer.tol,
        otherwise=Status.ROUNDING if answer.status is Status.CERTIFIED else answer.status,
        message=answer.message,
        iterations=answer.iterations,
        seconds=answer.seconds,
        solver=answer.solver,
        history=answer.history,
    )


def combine_factors(problem: Any, answers: Sequence[Solution], dual: Any, tol: float) -> Solution:
    """Return answers to the factors of a product, from whichever layer, as one to the product, judged anew.

    `dual` is the kind of the answers' dual weights: those of the product are tuples, one item per factor.
    """
    different = {id(each): each for each in answers}.values()  # a factor that comes twice is solved once
    reasons = [each.status for each in answers if each.status is not Status.CERTIFIED]
    parts = (tuple(getattr(each.dual, name) for each in answers) for name in dual.__dataclass_fields__)
    return judged_solution(
        problem,
        tuple(each.primal for each in answers),
        dual(*parts),
        tol=tol,
        otherwise=reasons[0] if reasons else Status.ROUNDING,
        iterations=sum(each.iterations for each in different),
        seconds=sum(each.seconds for each in different),
        solver=" x ".join(dict.fromkeys(each.solver for each in answers)),
    )


def _rounding_note(solution: Solution) -> str:
    """Say how much rounding may hide, where that is more than was asked."""
    resolution = solution.certificate.resolution
    return f", up to rounding of {resolution:.1e}," if resolution > solution.tol else ""


def warn_if_uncertified(solution: Solution, stacklevel: int = 3) -> Solution:
    """Return a solution, with a warning where the tolerance was not proven."""
    if solution.status is not Status.CERTIFIED:
        warnings.warn(
            f"{solution.solver}: gap {solution.gap:.1e} proven{_rounding_note(solution)} where "
            f"{solution.tol:.1e} was asked ({solution.status.name}). {solution.message or solution.status.value}",
            UncertifiedWarning,
            stacklevel=stacklevel,
        )
    return solution

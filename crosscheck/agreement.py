"""Agreement of answers to one problem, by their certified intervals, not by solvers' values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from dualmech import validate
from dualmech.display import Displayed
from dualmech.errors import InvalidInputError
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution, require_solution

if TYPE_CHECKING:
    from dualmech.crosscheck.judging import Judgement

TOLERANCES = {"fast": 1e-6, "CLARABEL": 1e-5, "SCS": 1e-3}
"""Maximum relative width of the certified interval of a layer or backend."""


class Agreement(Enum):
    """The outcome of comparing certified intervals of one optimum."""

    AGREE = "the intervals meet and each is as narrow as promised"
    WIDE = "the intervals meet, but one is wider than promised, so that meeting proves little"
    DISAGREE = "the intervals are disjoint: one of the certificates is wrong"


VERDICTS = {Agreement.AGREE: "yes", Agreement.WIDE: "wide", Agreement.DISAGREE: "NO"}  # words for tables


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Displayed):
    """Several answers to one problem, and the verdict of their comparison."""

    outcome: Agreement
    lower_bound: float
    objective: float

    def _facts(self) -> dict[str, object]:
        return {
            "outcome": f"{self.outcome.name}: {self.outcome.value}",
            "the optimum lies in": f"[{self.lower_bound:.9g}, {self.objective:.9g}]",
        }

    def __repr__(self) -> str:
        return f"Comparison({self.outcome.name}, [{self.lower_bound:.9g}, {self.objective:.9g}])"


def compare(answers: Sequence[Solution | Judgement]) -> Comparison:
    """Compare the certified intervals of several answers, solutions or judgements, to the same problem.

    All intervals contain the optimum, so they must intersect. Wide intervals prove little, so each must also be at most
    as wide as its own tolerance. The comparison's interval is the intersection. The problem certifies every answer
    again, and the new interval must intersect the others as well.
    Raises `InvalidInputError` for no answers, or answers to problems that differ.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> from dualmech.crosscheck import compare
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(4), targets=1.0)
    >>> pair = [fast.solve(problem, method=name) for name in ("newton", "fixed_point")]
    >>> compare(pair).outcome.name
    'AGREE'
    """
    answers = validate.sequence(answers=answers)
    if not answers:
        raise InvalidInputError("answers must not be empty")
    solutions = [require_solution(answer, f"answers[{index}]") for index, answer in enumerate(answers)]
    if not all(solutions[0].problem.same_as(solution.problem) for solution in solutions):
        raise InvalidInputError("answers must be to the same problem, got different arguments")
    judged = [
        judged_solution(solution.problem, solution.primal, solution.dual, tol=solution.tol, otherwise=Status.ROUNDING)
        for solution in solutions
    ]
    return meet([*solutions, *judged])


def meet(answers: Sequence[Solution]) -> Comparison:
    """Compare certified intervals of one optimum; the problems may differ."""
    intervals = [answer.certificate.interval for answer in answers]
    lower, upper = max(low for low, _ in intervals), min(high for _, high in intervals)
    if lower > upper:
        outcome = Agreement.DISAGREE
    elif all(answer.certificate.certifies(answer.tol) for answer in answers):
        outcome = Agreement.AGREE
    else:
        outcome = Agreement.WIDE
    return Comparison(outcome, lower, upper)

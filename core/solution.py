"""The result of a solver: an answer, the judge's certificate, and the reason why it is or is not certified."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from dualmech import watching
from dualmech.certificate import Certificate
from dualmech.display import Displayed, told_apart
from dualmech.errors import InfeasibleAnswerError, InputTypeError, InvalidInputError, UncertifiedWarning
from dualmech.immutable import frozen_copy
from dualmech.progress import History, Progress, Status
from dualmech.validate import Array
from dualmech.workloads.base import same_content

if TYPE_CHECKING:
    from dualmech.problems.base import AnyProblem

Dual = TypeVar("Dual")  # the problem's dual weights
Made = TypeVar("Made")  # the mechanism of an answer


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class Solution(Displayed, Generic[Dual, Made]):
    """An answer with its certificate; the certificate is made by the problem, never by the solver.

    Solvers of either layer return one, `dualmech.judged` makes one of an answer from elsewhere, and
    `dualmech.load` reads one; calling the class is refused with `InputTypeError`.

    Attributes
    ----------
    problem, primal, dual
        The problem and the two sides of the answer, enough to check it again.
    certificate : Certificate
        Objective, proven bound, gap, violation and resolution.
    tol : float
        The gap that was asked for.
    status : Status
        ``CERTIFIED``, or why not; `message` adds the solver's own words.
    iterations, seconds, solver
        How the answer was found. The fast layer counts eigendecompositions.
    history : History
        The solver's news, step by step: ``history.gap`` and the other fields of `Progress` are arrays.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> fast.solve(dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0), tol=1e-4)  # doctest: +ELLIPSIS
    Solution(CERTIFIED, 1.333..., gap ..., FitnessForUse 2 × 2, dense)
    """

    problem: AnyProblem
    primal: Any
    dual: Dual
    certificate: Certificate
    tol: float
    status: Status
    message: str
    iterations: int
    seconds: float
    solver: str
    history: History
    _metadata: tuple[tuple[str, Any], ...]
    _mechanism: Any  # None until a user asks for the mechanism

    def __init__(self, *_: object, **__: object) -> None:
        raise InputTypeError(
            "a Solution is made by a solver or by dualmech.judged(problem, primal, dual), which have it judged"
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The terms of a plan by name, which nobody can change."""
        return MappingProxyType(dict(self._metadata))

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
    def mechanism(self) -> Made:
        """The mechanism of the answer, to release with.

        Raises `InfeasibleAnswerError` if the answer is infeasible, or if the rounding-error bound of its evaluation is
        as large as the evaluated numbers.

        A `LinearGaussianMechanism`; for local privacy a `LocalMechanism`; on geometry ``blocks`` a `BlockMechanism`, on
        ``product`` a `ProductMechanism`, on ``split`` a `SplitMechanism`.
        """
        if not self.certificate.feasible:
            excess = "; ".join(self.problem.exceeded(self.primal))
            raise InfeasibleAnswerError(
                f"no mechanism: the answer exceeds a constraint by {self.certificate.violation:.2e} "
                f"(status {self.status.name}){excess and f': {excess}'}"
            )
        if self.certificate.resolution >= 1:
            raise InfeasibleAnswerError(
                f"no mechanism: rounding may hide {self.certificate.resolution:.2e} times the evaluated numbers "
                f"(status {self.status.name}); rescale data that differ widely"
            )
        if self._mechanism is None:
            object.__setattr__(self, "_mechanism", self.problem.mechanism(self.primal))
        return cast(Made, self._mechanism)

    @property
    def covariance(self) -> Array:
        """Covariance of the noise on the rows of the mechanism (k, k); refused for mechanisms without one matrix."""
        if not hasattr(mechanism := self.mechanism, "covariance"):
            raise InvalidInputError(
                f"a {type(mechanism).__name__} has no covariance of all its noise; ask for variances of queries"
            )
        covariance: Array = mechanism.covariance()
        return covariance

    @property
    def variances(self) -> Any:
        """Variance of every query of the workload (m,); of a table, the largest; of a product, by factor.

        Refused where the problem has no workload, and for local privacy, where variances depend on the data.
        """
        workload, mechanism = getattr(self.problem, "workload", None), self.mechanism
        if workload is None or not hasattr(mechanism, "variances"):
            raise InvalidInputError(
                f"an answer to a {type(self.problem).__name__} has no variances of its own; ask its mechanism"
            )
        return mechanism.variances(workload)

    @property
    def rho(self) -> float:
        """The ρ of zero-concentrated differential privacy that the mechanism costs; local privacy has none."""
        rho = getattr(mechanism := self.mechanism, "rho", None)
        if rho is None:
            raise InvalidInputError(f"a {type(mechanism).__name__} has no rho; its privacy is its epsilon")
        return float(rho)

    def __eq__(self, other: object) -> bool:
        """Whether another answer has the same problem, point and dual weights, however it was found."""
        if not isinstance(other, Solution):
            return NotImplemented
        parts = ("problem", "primal", "dual")
        return all(same_content(getattr(self, name), getattr(other, name)) for name in parts)

    def __hash__(self) -> int:
        return hash((Solution, self.certificate.objective))

    def _headline(self) -> str:
        return str(getattr(self.problem, "headline", type(self.problem).__name__))

    def _facts(self) -> dict[str, object]:
        meaning = "" if self.status is Status.CERTIFIED else f": {self.message or self.status.value}"
        return {
            "problem": self._headline(),
            "status": f"{self.status.name}{meaning}",
            "objective": self.objective,
            "lower bound": self.lower_bound,
            "gap": gap_words(self.certificate, self.tol).removeprefix("gap "),
            "solver": f"{self.solver}, {self.iterations} steps, {self.seconds:.2g} s",
        }

    def __repr__(self) -> str:
        gap = f"gap {self.gap:.2g}" if self.certificate.feasible else "infeasible"
        return f"Solution({self.status.name}, {self.objective:.6g}, {gap}, tol {self.tol:.2g}, {self._headline()})"

    @property
    def prices(self) -> Array:
        """Share of each query in the cost (m,); sums to 1.

        To first order, a target loosened by the small fraction t lowers the squared privacy cost by the
        fraction ``prices[j] · t``; a weight raised by it raises the total variance by that fraction.
        """
        prices: Array = self.problem.prices(self.dual)
        return prices

    @property
    def phase_prices(self) -> Array:
        """Share of each part of each phase in the bound (phases, times), of several epochs; sums to 1, a row a phase.

        To first order, parts larger by the small fraction t raise the bound by the fraction 2 t times their shares.
        Raises `InvalidInputError` for neighbours other than `Participation`.
        """
        prices: Array = self.problem.phase_prices(self.dual)
        return prices

    @property
    def binding(self) -> npt.NDArray[np.intp]:
        """Indices of the binding neighbours: their cost is the largest, up to the slack that the gap leaves.

        A slack below ``max(1e-6, √gap)``, relative to the objective, counts as binding: with a gap g, a
        neighbour of dual weight w can be slack by g/w at most.
        """
        slack = min(max(1e-6, self.gap**0.5), 1.0)  # the gap may be infinite, and at 1 all bind
        indices: npt.NDArray[np.intp] = self.problem.binding(self.primal, slack)
        return indices


def judged_solution(
    problem: AnyProblem,
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
    metadata: Mapping[str, Any] | None = None,
) -> Solution:
    """Let the problem judge an answer and wrap both.

    `otherwise` is the status of an answer that the judge did not certify, so it cannot be CERTIFIED itself.
    """
    if otherwise is Status.CERTIFIED:
        raise ValueError("only the judge certifies: otherwise must be another status")
    primal, dual = frozen_copy(primal), frozen_copy(dual)  # the judged point can no longer change
    certificate = problem.certify(primal, dual)
    status = Status.CERTIFIED if certificate.certifies(tol) else otherwise
    if status is not Status.CERTIFIED and certificate.gap <= max(tol, certificate.resolution):
        status = Status.ROUNDING
    return _made(
        problem=problem,
        primal=primal,
        dual=dual,
        certificate=certificate,
        tol=tol,
        status=status,
        message=message,
        iterations=iterations,
        seconds=seconds,
        solver=solver,
        history=History(history),
        _metadata=tuple((metadata or {}).items()),
        _mechanism=None,
    )


def _made(**parts: object) -> Solution:
    solution = object.__new__(Solution)
    for name, value in parts.items():
        object.__setattr__(solution, name, value)
    return solution


def retold(answer: Solution, metadata: Mapping[str, Any] | None = None, **changes: object) -> Solution:
    """Return the same answer with other words on it: tolerance and status, message, solver, metadata."""
    parts = {part.name: getattr(answer, part.name) for part in fields(answer)}
    if metadata is not None:
        parts["_metadata"] = tuple(metadata.items())
    return _made(**parts | changes)


def require_solution(answer: object, name: str = "answer") -> Solution:
    """Return a solution, or a judgement's solution; refuse other objects."""
    solution = getattr(answer, "answer", answer)
    if not isinstance(solution, Solution):
        raise InputTypeError(f"{name} must be a Solution of dualmech or a Judgement, got {type(answer).__name__}")
    return solution


def transfer(answer: Solution, problem: object, primal: object, dual: object) -> Solution:
    """Return an answer as an answer of another problem, judged anew; iterations, seconds and solver are kept."""
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


def combine_factors(problem: AnyProblem, answers: Sequence[Solution], dual: Any, tol: float) -> Solution:
    """Return one answer to a product from answers to its factors, from either layer, judged anew.

    `dual` is the class of the answers' dual weights; the product's weights are tuples, one item per factor.
    """
    different = {id(answer): answer for answer in answers}.values()  # a factor that comes twice is solved once
    reasons = [answer.status for answer in answers if answer.status is not Status.CERTIFIED]
    parts = (tuple(getattr(answer.dual, name) for answer in answers) for name in dual.__dataclass_fields__)
    return judged_solution(
        problem,
        tuple(answer.primal for answer in answers),
        dual(*parts),
        tol=tol,
        otherwise=reasons[0] if reasons else Status.ROUNDING,
        iterations=sum(answer.iterations for answer in different),
        seconds=sum(answer.seconds for answer in different),
        solver=" x ".join(dict.fromkeys(answer.solver for answer in answers)),
    )


def gap_words(certificate: Certificate, tol: float) -> str:
    """Say in words which gap was proven and whether it is within the tolerance, or why no gap was proven."""
    if not certificate.feasible:
        return f"no gap proven, as the answer is infeasible by {certificate.violation:.1e}"
    gap, aim = told_apart(certificate.gap, tol)
    if certificate.gap > tol:
        return f"gap {gap} proven, above the {aim} asked"
    if certificate.resolution > tol:
        gap, aim = told_apart(certificate.resolution, tol)
        return f"gap {certificate.gap:.1e} found, but rounding may hide {gap}, above the {aim} asked"
    return f"gap {gap} proven, within the {aim} asked"


def warn_if_uncertified(solution: Solution, stacklevel: int = 3) -> Solution:
    """Note a solution for collectors of answers, warn where the tolerance was not proven, and return the solution."""
    watching.note(solution)
    if solution.status is not Status.CERTIFIED:
        warnings.warn(
            f"{solution.solver}: {gap_words(solution.certificate, solution.tol)} ({solution.status.name}). "
            f"{solution.message or solution.status.value}",
            UncertifiedWarning,
            stacklevel=stacklevel,
        )
    return solution

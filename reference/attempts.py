"""Running a program until the judge is satisfied: read its variables, repair them, judge, ask for more accuracy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import BackendError, InvalidInputError
from dualmech.progress import Deadline, Status
from dualmech.reference import backends, cp
from dualmech.reference.formulas.writing import Formula
from dualmech.solution import Solution, judged_solution, retold
from dualmech.validate import Array

if TYPE_CHECKING:
    from cvxpy.reductions.solvers.solver import Solver

SPARE = 0.1  # privacy cost that a repair may add, as a share of the tolerance, where the optimum is near 1

ACCURACIES = (1.0, 0.1, 0.01)
"""A program is solved this much more accurately each time that the judge is not satisfied."""

FIRST_SHARPNESS = 1.0  # sharpness of a centring problem that is only to be read
GROWTH = 10.0  # factor from one sharpness on the central path to the next
LAST_BOUND = 0.25  # the path ends where its own bound on the gap is this share of the tolerance
PATH_ACCURACY = 0.1  # a centring problem is solved this much more accurately than a single program

Step = tuple[float, str]
"""The tolerance of a backend's run, and a text to add to its message."""


@dataclass(frozen=True, slots=True, eq=False)
class BackendRequest:
    """A backend, the gap to prove with it, when it must end, and its own options."""

    backend: str
    tol: float
    deadline: Deadline
    options: dict[str, object]
    began: float

    @classmethod
    def of(
        cls,
        backend: str | Solver,
        cones: frozenset[str],
        tol: float | None,
        time_limit: float | None,
        options: dict[str, Any],
    ) -> BackendRequest:
        """Check the request; the time counts from here."""
        name = backends.backend_name(backend, cones)
        tol = backends.tolerance(name) if tol is None else validate.positive_number(tol=tol)
        deadline = Deadline.of(time_limit)
        if time_limit is not None:
            backends.check_time_limit(name)
        return cls(name, tol, deadline, options, time.perf_counter())

    @property
    def time_left(self) -> float | None:
        """The limit on seconds of a part that begins now."""
        left = self.deadline.left
        return None if left is None else max(left, backends.SHORTEST)


class Units(Protocol):
    """The scaling of a program, and the way back to the problem."""

    @property
    def problem(self) -> Any:
        """The problem to solve."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of multipliers of each kind, and the size of the primal point."""

    @property
    def objective_unit(self) -> float:
        """The problem's objective that is 1 in scaled units."""

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> object:
        """Return the problem's primal point for a backend's, feasible; the identity stands for where it began."""


@dataclass(frozen=True, slots=True, eq=False)
class ScaledProgram:
    """A program in units in which its numbers are of order one, and how to read its answer."""

    program: cp.Problem
    units: Units
    covariance: Callable[[], Array | None]  # returns Σ as the backend left it, or None
    dual: Callable[..., Any]  # takes multipliers, an argument for each of `constraints`, to dual weights
    constraints: tuple[str, ...] = ()  # names of those whose multipliers are weights
    optimum: Callable[[float], float] = float  # takes the program's value to the optimum that it stands for
    steps: Iterable[Step] | None = None  # by default ever more accurate

    @property
    def value(self) -> float:
        """The optimum as the backend reports it; NaN before it has an answer."""
        value = self.program.value
        return self.optimum(math.nan if value is None else float(value))


@dataclass(frozen=True, slots=True, eq=False)
class Formulations:
    """The programs of one kind of problem: which there are, over the problem's arrays and in scaled units."""

    cones: Callable[[Any], Mapping[str, frozenset[str]]]  # the cones of each, by name, the default first
    write: Callable[..., cp.Problem]  # of a problem and a name
    scale: Callable[..., ScaledProgram | Solution] | None  # of a problem, a name and a request; None: stated only
    formula: Callable[[Any], Formula] | None = None  # of a problem: its symbols, program, dual and proof
    symmetries: bool = False  # whether both take orbits
    forms: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """By the name of a formulation whose constraints are not those of `formula`, a form as in `formulas.programs`."""

    def formulate(self, problem: object, formulation: str | None = None, **options: object) -> cp.Problem:
        """State the problem over its own arrays; see `dualmech.reference.formulate`."""
        return self.write(problem, self.formulation_name(problem, formulation), **self._with_orbits(options))

    def solve(
        self,
        problem: object,
        *,
        backend: str | Solver = "CLARABEL",
        formulation: str | None = None,
        tol: float | None = None,
        time_limit: float | None = None,
        orbits: object = None,
        **options: object,
    ) -> Solution:
        """Solve the problem with a backend of CVXPY; see `dualmech.reference.solve`."""
        assert self.scale is not None
        name = self.formulation_name(problem, formulation)
        settings = self._with_orbits({} if orbits is None else {"orbits": orbits})
        request = BackendRequest.of(backend, self.cones(problem)[name], tol, time_limit, options)
        scaled = self.scale(problem, name, request, **settings)
        if isinstance(scaled, Solution):  # known without a program
            return scaled
        answer = solve(scaled, request)
        return retold(answer, solver=f"{answer.solver}:{name}")

    def formulation_name(self, problem: object, formulation: str | None = None) -> str:
        """Return the name of a formulation, the default where none is named; refuse an unknown one."""
        known = self.cones(problem)
        return next(iter(known)) if formulation is None else validate.choice([*known], formulation=formulation)

    def _with_orbits(self, options: dict[str, object]) -> dict[str, object]:
        if options.get("orbits") is not None and not self.symmetries:
            raise InvalidInputError("the reference layer takes orbits of FitnessForUse and PrivacyFirst alone")
        return options


def solve(scaled: ScaledProgram, request: BackendRequest) -> Solution:
    """Run a program until the judge grants the tolerance, ever more accurately, and return the best answer.

    CVXPY compiles once, and a backend that can starts where it ended. A later attempt that fails is ignored. All share
    the time, the first of them even where none is left.
    """
    name, tol, options, steps = request.backend, request.tol, request.options, scaled.steps
    if steps is None:
        fixed = not backends.accuracy(name, tol).keys() - options.keys()  # by the user, or by the backend
        steps = [(accuracy * tol, "") for accuracy in (ACCURACIES[:1] if fixed else ACCURACIES)]
    answers: list[Solution] = []
    for accuracy, note in steps:
        if answers and request.deadline.passed:
            break
        try:
            outcome = backends.run(scaled.program, name, tol=accuracy, deadline=request.deadline, options=options)
            answer = _judged(scaled, outcome, request)
        except BackendError:
            if not answers:
                raise
            break
        answers.append(retold(answer, message=answer.message + note))
        # More accuracy does not mend an infinite gap.
        if answer.gap <= tol or math.isinf(answer.gap):
            break
    best = min(answers, key=lambda answer: answer.gap)
    if best.status is Status.BACKEND and (outcome.exhausted or request.deadline.passed):
        best = retold(best, status=Status.STEPS_EXHAUSTED)
    return retold(
        best,
        iterations=sum(answer.iterations for answer in answers),
        seconds=time.perf_counter() - request.began,
        solver=f"reference:{name}",
    )


def _judged(scaled: ScaledProgram, outcome: backends.BackendRun, request: BackendRequest) -> Solution:
    """Read a program's variables and multipliers, repair both, and let the judge decide.

    An answer that the judge cannot tell apart from rounding is repaired again, with a little more privacy cost and
    less noise.
    """
    units = scaled.units
    # The optimum as the backend reports it, in the problem's own units.
    reported = scaled.value * units.objective_unit
    message = f"{request.backend}: {outcome.status}, reported optimum {reported:.10g}"
    try:
        inner = scaled.covariance()
        dual = scaled.dual(*(multipliers(scaled.program, name) for name in scaled.constraints))
        primal = units.covariance(inner)
    except BackendError as error:
        if not outcome.exhausted:
            raise BackendError(f"{error} (backend {request.backend}, status {outcome.status})") from error
        *counts, rank = units.sizes
        inner, dual = np.eye(rank), scaled.dual(*map(np.ones, counts[: len(scaled.constraints)]))
        primal = units.covariance(inner)
        message = f"{request.backend}: {outcome.status} before it had an answer; this is where it began"
    judged = partial(
        judged_solution,
        units.problem,
        dual=dual,
        tol=request.tol,
        otherwise=Status.BACKEND,
        message=message,
        iterations=outcome.iterations,
    )
    answer = judged(primal)
    certificate = answer.certificate
    if not certificate.feasible or certificate.resolution > request.tol:
        answer = judged(units.covariance(inner, SPARE * request.tol))
    return answer


def sharpness_of(formulation: str, sharpness: float | None) -> float:
    """Return the sharpness of a centring problem, 1 by default; refuse one of another formulation, or not positive."""
    if sharpness is not None and formulation != "logdet":
        raise InvalidInputError(f"sharpness belongs to formulation 'logdet', not to {formulation!r}")
    return FIRST_SHARPNESS if sharpness is None else validate.positive_number(sharpness=sharpness)


def central_path(
    program: cp.Problem, tol: float, barriers: int, words: str, *, optimum: float = 1.0, unit: float = 1.0
) -> Iterator[Step]:
    """Sharpen a centring problem, whose one parameter is 1/t, as far as the tolerance needs.

    - `barriers`: the sum of the logarithms' parameters: a centre is at most ``barriers / t`` above the optimum;
    - `words`: that bound, in the letters of the program;
    - `optimum`: about what the optimum is in the program's units, and `unit`: what 1 of these is in the problem's.
    """
    (inverse_sharpness,) = program.parameters()
    last = 1 / (LAST_BOUND * tol)
    for step in range(math.ceil(math.log(last, GROWTH)) + 1):
        sharpness = barriers / optimum * min(GROWTH**step, last)
        inverse_sharpness.value = 1 / sharpness
        bound = barriers / sharpness * unit
        note = f"whose centre is at most {words} = {bound:.2g} too high"
        yield PATH_ACCURACY * tol, f"; sharpness t = {barriers / bound:.3g}, {note}"


def trace_of(program: cp.Problem, name: str) -> float:
    """Return the trace of a matrix at a centre, which says more of the optimum than the program's value; NaN before."""
    value = program.var_dict[name].value
    return math.nan if value is None else float(np.trace(value))


def label(name: str, constraint: cp.Constraint) -> cp.Constraint:
    """Give a constraint the name under which it is printed (CVXPY before labels keeps it, unprinted)."""
    constraint.label = name
    return constraint


def multipliers(program: cp.Problem, name: str) -> Array:
    """Return the multipliers of the constraints of one name, numbered or not, in their order."""
    values = [constraint.dual_value for constraint in program.constraints if constraint.label.partition("[")[0] == name]
    if any(value is None for value in values):
        raise BackendError("the backend returned no multipliers to judge")
    return np.concatenate([np.ravel(np.asarray(value, dtype=np.float64)) for value in values])

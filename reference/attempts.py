"""Solving a program until the judge certifies the tolerance: read its variables, repair, judge, increase accuracy."""

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

EXTRA_COST_SHARE = 0.1  # privacy cost that a repair may add, relative to the tolerance, for an optimum near 1

ACCURACY_FACTORS = (1.0, 0.1, 0.01)
"""Factors on the tolerance of a backend in successive attempts."""

DEFAULT_SHARPNESS = 1.0  # of a centring problem that is stated without a sharpness
SHARPNESS_FACTOR = 10.0  # between successive problems on the central path
FINAL_GAP_SHARE = 0.25  # gap at the end of the path, relative to the tolerance
PATH_TOL_FACTOR = 0.1  # tolerance of a centring problem, relative to a single program

Step = tuple[float, str]
"""The tolerance of a run of a backend, and a text for its message."""


@dataclass(frozen=True, slots=True, eq=False)
class BackendRequest:
    """A backend, the gap to prove, the deadline, and the backend's options."""

    backend: str
    tol: float
    deadline: Deadline
    options: dict[str, object]
    start_time: float

    @classmethod
    def of(
        cls,
        backend: str | Solver,
        cones: frozenset[str],
        tol: float | None,
        time_limit: float | None,
        options: dict[str, Any],
    ) -> BackendRequest:
        """Validate the request and start its time limit."""
        name = backends.backend_name(backend, cones)
        tol = backends.tolerance(name) if tol is None else validate.positive_number(tol=tol)
        deadline = Deadline.of(time_limit)
        if time_limit is not None:
            backends.check_time_limit(name)
        return cls(name, tol, deadline, options, time.perf_counter())

    @property
    def time_left(self) -> float | None:
        """The remaining seconds, for a part that starts now."""
        remaining = self.deadline.left
        return None if remaining is None else max(remaining, backends.MIN_SECONDS)


class Units(Protocol):
    """The scaling of a program, and the maps to the problem."""

    @property
    def problem(self) -> Any:
        """The problem to solve."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of multipliers of each kind, and the size of the primal point."""

    @property
    def objective_unit(self) -> float:
        """The unit of the objective."""

    def covariance(self, inner: npt.ArrayLike | None, extra_cost: float = 0.0) -> object:
        """Return a feasible primal point of the problem from a backend's; the identity is the point before any step."""


@dataclass(frozen=True, slots=True, eq=False)
class ScaledProgram:
    """A program in units of order one, and how to read its answer."""

    program: cp.Problem
    units: Units
    covariance: Callable[[], Array | None]  # returns the backend's Σ, or None
    dual: Callable[..., Any]  # maps multipliers, an argument for each of `constraints`, to dual weights
    constraints: tuple[str, ...] = ()  # names of those whose multipliers are weights
    optimum: Callable[[float], float] = float  # maps the program's value to the optimum
    steps: Iterable[Step] | None = None  # by default with increasing accuracy

    @property
    def value(self) -> float:
        """The optimum reported by the backend; NaN before it has an answer."""
        value = self.program.value
        return self.optimum(math.nan if value is None else float(value))


@dataclass(frozen=True, slots=True, eq=False)
class Formulations:
    """The programs of a family: their names, over the problem's arrays and in scaled units."""

    cones: Callable[[Any], Mapping[str, frozenset[str]]]  # the cones of each, by name, the default first
    write: Callable[..., cp.Problem]  # of a problem and a name
    scale: Callable[..., ScaledProgram | Solution] | None  # of a problem, a name and a request; None: stated only
    formula: Callable[[Any], Formula] | None = None  # of a problem: its symbols, program, dual and proof
    symmetries: bool = False  # whether `formulate` and `solve` support orbits
    forms: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """For formulations with other constraints than `formula`, by name: a form as in `formulas.programs`."""

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
        if isinstance(scaled, Solution):  # solved without a program
            return scaled
        answer = solve(scaled, request)
        return retold(answer, solver=f"{answer.solver}:{name}")

    def formulation_name(self, problem: object, formulation: str | None = None) -> str:
        """Return the name of a formulation, by default the first one; raise `InvalidInputError` if it is unknown."""
        names = self.cones(problem)
        return next(iter(names)) if formulation is None else validate.choice([*names], formulation=formulation)

    def _with_orbits(self, options: dict[str, object]) -> dict[str, object]:
        if options.get("orbits") is not None and not self.symmetries:
            raise InvalidInputError("the reference layer supports orbits only for FitnessForUse and PrivacyFirst")
        return options


def solve(scaled: ScaledProgram, request: BackendRequest) -> Solution:
    """Solve a program with increasing accuracy until the judge certifies the tolerance, and return the best answer.

    CVXPY compiles once, and backends are warm-started if possible. A failure after the first attempt is ignored. All
    attempts share the time limit; the first one always runs.
    """
    name, tol, options, steps = request.backend, request.tol, request.options, scaled.steps
    if steps is None:
        is_fixed = not backends.accuracy(name, tol).keys() - options.keys()  # by the user or the backend
        steps = [(accuracy * tol, "") for accuracy in (ACCURACY_FACTORS[:1] if is_fixed else ACCURACY_FACTORS)]
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
        # More accuracy does not help if the gap is infinite.
        if answer.gap <= tol or math.isinf(answer.gap):
            break
    best = min(answers, key=lambda answer: answer.gap)
    if best.status is Status.BACKEND and (outcome.exhausted or request.deadline.passed):
        best = retold(best, status=Status.STEPS_EXHAUSTED)
    return retold(
        best,
        iterations=sum(answer.iterations for answer in answers),
        seconds=time.perf_counter() - request.start_time,
        solver=f"reference:{name}",
    )


def _judged(scaled: ScaledProgram, outcome: backends.BackendRun, request: BackendRequest) -> Solution:
    """Read the variables and multipliers of a program, repair both, and judge them.

    If the judge's rounding errors exceed the tolerance, the answer is repaired again, with less noise in unconstrained
    directions and slightly more privacy cost.
    """
    units = scaled.units
    # In the units of the problem.
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
        message = f"{request.backend}: {outcome.status} before it had an answer; this is its starting point"
    judge = partial(
        judged_solution,
        units.problem,
        dual=dual,
        tol=request.tol,
        otherwise=Status.BACKEND,
        message=message,
        iterations=outcome.iterations,
    )
    answer = judge(primal)
    certificate = answer.certificate
    if not certificate.feasible or certificate.resolution > request.tol:
        answer = judge(units.covariance(inner, EXTRA_COST_SHARE * request.tol))
    return answer


def sharpness_of(formulation: str, sharpness: float | None) -> float:
    """Validate the sharpness of a centring problem, 1 by default."""
    if sharpness is not None and formulation != "logdet":
        raise InvalidInputError(f"sharpness is an option of formulation 'logdet', not of {formulation!r}")
    return DEFAULT_SHARPNESS if sharpness is None else validate.positive_number(sharpness=sharpness)


def central_path(
    program: cp.Problem, tol: float, barriers: int, words: str, *, optimum: float = 1.0, unit: float = 1.0
) -> Iterator[Step]:
    """Increase the sharpness t of a centring problem, whose only parameter is 1/t, until the tolerance is reached.

    - `barriers`: the barrier parameter: a centre is at most ``barriers / t`` above the optimum;
    - `words`: that bound as a formula;
    - `optimum`: approximate optimum in the units of the program;
    - `unit`: the unit of the objective.
    """
    (inverse_sharpness,) = program.parameters()
    max_sharpness = 1 / (FINAL_GAP_SHARE * tol)
    for step in range(math.ceil(math.log(max_sharpness, SHARPNESS_FACTOR)) + 1):
        sharpness = barriers / optimum * min(SHARPNESS_FACTOR**step, max_sharpness)
        inverse_sharpness.value = 1 / sharpness
        bound = barriers / sharpness * unit
        note = f"whose centre is at most {words} = {bound:.2g} too high"
        yield PATH_TOL_FACTOR * tol, f"; sharpness t = {barriers / bound:.3g}, {note}"


def trace_of(program: cp.Problem, name: str) -> float:
    """Return the trace of a matrix at a centre, which is closer to the optimum than the program's value, or NaN."""
    value = program.var_dict[name].value
    return math.nan if value is None else float(np.trace(value))


def label(name: str, constraint: cp.Constraint) -> cp.Constraint:
    """Set the label of a constraint, which recent versions of CVXPY print."""
    constraint.label = name
    return constraint


def multipliers(program: cp.Problem, name: str) -> Array:
    """Return the multipliers of all constraints with a label, numbered or not, in order."""
    values = [constraint.dual_value for constraint in program.constraints if constraint.label.partition("[")[0] == name]
    if any(value is None for value in values):
        raise BackendError("the backend returned no multipliers to judge")
    return np.concatenate([np.ravel(np.asarray(value, dtype=np.float64)) for value in values])

"""A solver's tests against proven optima: problems to parametrise tests by, and checks that fail with both bounds.

Nothing here needs pytest, or a folder of files: a problem is proven when its interval is first asked for, in some
hundredths of a second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.certificate import FEASIBLE, Certificate
from dualmech.crosscheck import collection, library
from dualmech.crosscheck.leaderboard import Entry, distance_entry
from dualmech.errors import InputTypeError, InvalidInputError, WrongAnswerError, first_line
from dualmech.problems.base import AnyProblem
from dualmech.validate import Array
from dualmech.workloads.domain import count_text

MOST_CELLS = 16  # of the problems by default
WITHIN = 1e-6  # default relative distance from the optimum that an answer may have


@dataclass(frozen=True, slots=True, eq=False)
class KnownProblem:
    """A problem of the library in plain arrays, and between which numbers its optimum lies.

    Attributes
    ----------
    name : str
        As in the library; ``str`` of it, so that ``ids=str`` names tests.
    problem : Problem
        The problem itself.
    """

    name: str
    problem: AnyProblem

    @property
    def family(self) -> str:
        """What is minimised: ``FitnessForUse`` the squared privacy cost, and so on."""
        return type(self.problem).__name__

    @property
    def arrays(self) -> dict[str, Array]:
        return library.of_problem(self.problem)

    @property
    def workload(self) -> Array:
        """W (m, d), a query a row, as an array; refused where it is no matrix."""
        return self._array("workload")

    @property
    def targets(self) -> Array:
        """Largest variances (m,) of fitness for use; for tables one each."""
        return self._array("targets")

    @property
    def weights(self) -> Array:
        """Weights (m,) of the queries in the total variance; for tables one each."""
        return self._array("weights")

    @property
    def neighbours(self) -> Array | None:
        """U (d, s), differences of neighbouring data sets; None for one record added or removed."""
        return self.arrays.get("neighbours")

    @property
    def basis(self) -> Array:
        """B (k, d): a covariance (k, k) is of the noise on B x."""
        return self._array("basis")

    @property
    def lower(self) -> float:
        """A lower bound on the optimum, in exact arithmetic."""
        return library.interval(self.name)[0]

    @property
    def upper(self) -> float:
        """An upper bound on the optimum, in exact arithmetic."""
        return library.interval(self.name)[1]

    def _array(self, name: str) -> Array:
        held = self.arrays
        if name in held:
            return held[name]
        raise InvalidInputError(f"{self.name}, a {self.family}, is stated by {', '.join(held)}; it has no {name}")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        queries, cells = library.shape(self.problem)
        return f"KnownProblem({self.name}, {queries} x {count_text(cells, 6)})"


def problems(
    names: Sequence[str] | None = None, *, most_cells: int = MOST_CELLS, matrix: bool = False
) -> list[KnownProblem]:
    """Return problems of the library: those named, and of families, or of all, those of at most so many cells.

    A family is named by its class or by the first word of its problems' names. With `matrix` only those whose workload
    is a matrix, and not tables.
    Raises `InvalidInputError` for a name that is unknown.

    Examples
    --------
    >>> from dualmech.crosscheck import testing
    >>> (known,) = testing.problems(["fitness-prefix-2"])
    >>> known.workload, known.targets, round(known.lower, 9), round(known.upper, 9)
    (array([[1., 0.],
           [1., 1.]]), array([1., 1.]), 1.333333333, 1.333333333)
    >>> len(testing.problems(["FitnessForUse"])), len(testing.problems(["local"], most_cells=4))
    (37, 10)
    """
    stated = library.problems()
    limit, written = validate.size(most_cells=most_cells), validate.boolean(matrix=matrix)
    chosen = library.named([*collection.FAMILIES] if names is None else names)
    explicit = frozenset(() if names is None else names)
    known_problems = (KnownProblem(name, stated[name]()) for name in chosen)
    return [
        known
        for known in known_problems
        if (known.name in explicit or library.shape(known.problem)[1] <= limit)
        and (not written or "workload" in known.arrays)
    ]


def check(
    known: KnownProblem,
    primal: object = None,
    dual: object = None,
    value: float | None = None,
    *,
    tol: float = WITHIN,
    scaled: bool = False,
) -> Certificate | None:
    """Assert that an answer is optimal within a tolerance, taken as it is: nothing is rescaled or mended.

    Returns the judge's certificate of the point; None if no point was given. Raises `WrongAnswerError`, an
    `AssertionError`, for every fault of the answer: it is no point of the problem, it has NaN or a wrong shape, it is
    infeasible, or its distance from the proven optimum, above or below, exceeds the tolerance.
    Raises `InvalidInputError` or `InputTypeError` for other arguments.

    Parameters
    ----------
    known : KnownProblem
        The problem.
    primal : array, point or mechanism, optional
        The point, as the problem's own `certify` takes it: for noise its covariance on the basis (k, k) or on the cells
        (d, d), or a mechanism; weights of the design queries (k,); a covariance on the common basis (r, r); a local
        strategy Q (m, n), with whose best reconstruction for the average user it is judged; a projection (m, n);
        an estimate (d,). It must meet every constraint to 1e-9, and be at most `tol` above the optimum.
    dual : dual weights, or a tuple of their arrays, optional
        Multipliers, such as ``(λ, μ)`` for fitness for use and ``(λ,)`` for total variance: the bound that they prove
        must be at most `tol` below.
    value : float, optional
        The solver's value of the optimum: at most `tol` from it, above or below.
    tol : float
        Relative tolerance.
    scaled : bool
        Whether the point is scaled, or mended, to be feasible first: for a solver that publishes answers up to scale,
        such as strategies (`covariance_of_strategy` makes a covariance of one).

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.crosscheck import testing
    >>> (known,) = testing.problems(["fitness-prefix-2"])
    >>> noise = np.array([[2.0, -1.0], [-1.0, 2.0]])
    >>> testing.check(known, noise / 2, value=4 / 3).feasible
    True
    >>> testing.check(known, noise)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dualmech.errors.WrongAnswerError: fitness-prefix-2: infeasible: ... 2 ...; scaled it would be optimal within ...
    >>> testing.check(known, noise, scaled=True).feasible
    True
    """
    __tracebackhide__ = True
    chosen, allowed = validate.instance(KnownProblem, known=known), validate.nonnegative_number(tol=tol)
    mended = validate.boolean(scaled=scaled)
    if primal is None and dual is None and value is None:
        raise InvalidInputError("primal, dual or value must be given, got none of them")
    if value is not None:
        _check_value(chosen, value, allowed)
    if dual is not None:
        _check_dual(chosen, dual, allowed)
    return None if primal is None else _check_point(chosen, _point(chosen, primal), mended, allowed)


def distance(known: KnownProblem, primal: object, *, scaled: bool = False) -> float:
    """Return an upper bound on the relative distance of a point's objective from the optimum.

    It is at least 0, charges the point's violation of constraints of up to 1e-9, and is inf for an infeasible point
    (with `scaled` the point is made feasible first).
    Raises `WrongAnswerError` for an object that is no point of the problem.

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.crosscheck import testing
    >>> (known,) = testing.problems(["fitness-prefix-2"])
    >>> round(testing.distance(known, np.eye(2) / 2), 6), testing.distance(known, np.eye(2))
    (0.5, inf)
    """
    chosen = validate.instance(KnownProblem, known=known)
    return max(_entry(chosen, _point(chosen, primal), validate.boolean(scaled=scaled)).most, 0.0)


@dataclass(frozen=True, slots=True)
class Scores:
    """How far a solver's answers are from the optima of many problems; `str` of it is a table of at most 80 columns.

    Attributes
    ----------
    entries : tuple of leaderboard.Entry
        A row for each problem; its `fault` says why an answer failed.
    tol : float
        Relative distance from the optimum within which an answer counts.
    """

    entries: tuple[Entry, ...]
    tol: float

    @property
    def within(self) -> int:
        """Number of answers without a fault that are within `tol` of the optimum."""
        return sum(entry.status(self.tol) == "within" for entry in self.entries)

    def __str__(self) -> str:
        width = max((len(entry.name) for entry in self.entries), default=0)
        lines = [f"{'problem':{width}} {'apart':>7} {'exceeds':>7} {'s':>5} status"]
        lines += [
            f"{entry.name:{width}} {max(entry.most, 0.0):7.1e} {entry.violation:7.1e} {entry.seconds:5.2f} "
            f"{entry.status(self.tol)}"
            for entry in self.entries
        ]
        return "\n".join([*lines, f"{self.within} of {len(self.entries)} within {self.tol:g} of the optimum"])


def scores(
    solver: Callable[[KnownProblem], object],
    names: Sequence[str] | None = None,
    *,
    most_cells: int = MOST_CELLS,
    matrix: bool = False,
    tol: float = WITHIN,
    scaled: bool = False,
) -> Scores:
    """Run a solver on problems of the library, and return how far each answer is from the proven optimum.

    The solver takes a `KnownProblem` and returns a point, or a tuple of up to three: point, dual weights, value, as
    `check` takes them. An exception in the solver, an answer that is no point, and dual weights or a value that miss
    the optimum by more than `tol` are faults in the answer's row, and the next problem follows.
    Raises what `problems` raises.

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.crosscheck import testing
    >>> table = testing.scores(lambda known: np.eye(len(known.basis)), ["fitness-prefix-2"], scaled=True)
    >>> (row,) = table.entries
    >>> table.within, round(row.most, 6), row.violation, row.fault
    (0, 0.5, 0.0, '')
    """
    chosen = problems(names, most_cells=most_cells, matrix=matrix)
    run, mended = validate.function(solver=solver), validate.boolean(scaled=scaled)
    allowed = validate.nonnegative_number(tol=tol)
    return Scores(tuple(_scored(run, known, allowed, mended) for known in chosen), allowed)


def _scored(solver: Callable[[KnownProblem], object], known: KnownProblem, allowed: float, scaled: bool) -> Entry:
    """Return a solver's row for one problem: distance, violation, seconds and the first fault."""
    began, name = time.perf_counter(), str(getattr(solver, "__name__", "solver"))
    try:
        answer = solver(known)
    except Exception as error:
        return Entry(name, known.name, seconds=time.perf_counter() - began, fault=f"failed: {first_line(error)}")
    seconds = time.perf_counter() - began
    parts = answer if isinstance(answer, tuple) and len(answer) <= 3 else (answer,)
    padded: list[Any] = [*parts, None, None, None]
    primal, dual, value = padded[:3]
    try:
        entry = replace(_entry(known, _point(known, primal), scaled), solver=name, seconds=seconds)
    except WrongAnswerError as error:
        return Entry(name, known.name, seconds=seconds, fault=str(error))
    try:
        if dual is not None or value is not None:
            check(known, None, dual, value, tol=allowed)
    except WrongAnswerError as error:
        return replace(entry, fault=entry.fault or str(error))
    return entry


def _entry(known: KnownProblem, point: object, scaled: bool) -> Entry:
    return distance_entry("", known, known.problem, point, scaled)


def _point(known: KnownProblem, primal: object) -> object:
    """Return an answer as a point of the problem; anything else is a wrong answer."""
    __tracebackhide__ = True
    try:
        if isinstance(primal, np.ndarray | list):
            return library.as_point(known.problem, validate.finite(primal=primal), "covariance")
        return known.problem.as_primal(primal)
    except (InvalidInputError, InputTypeError) as error:
        raise WrongAnswerError(f"{known.name}: primal is no answer: {error}") from error


def _check_point(known: KnownProblem, point: object, scaled: bool, allowed: float) -> Certificate:
    __tracebackhide__ = True
    certificate, fault = library.judged(known, known.problem, point, scaled)
    if fault:
        raise WrongAnswerError(f"{known.name}: {fault}")
    _check_objective(known, certificate.objective, allowed)
    return certificate


def _check_dual(known: KnownProblem, dual: object, allowed: float) -> None:
    """Fail where multipliers prove too little, and say why if they prove nothing."""
    __tracebackhide__ = True
    point = library.some_answer(known.name).primal
    try:
        with np.errstate(all="ignore"):
            certificate: Certificate = known.problem.certify(point, known.problem.as_dual(dual))
    except (InvalidInputError, InputTypeError) as error:
        raise WrongAnswerError(f"{known.name}: dual proves nothing: {error}") from error
    if certificate.lower_bound >= known.lower * (1 - allowed):
        return
    reason = "; ".join(certificate.remarks) or f"the dual weights prove a bound of {certificate.lower_bound:.12g}"
    raise WrongAnswerError(
        f"{known.name}: {reason}, {_percent(1 - certificate.lower_bound / known.lower)} below the optimum, which is "
        f"proven to be {_between(known)}; at most {_percent(allowed)} is allowed"
    )


def _check_value(known: KnownProblem, value: object, allowed: float) -> None:
    __tracebackhide__ = True
    try:
        number = validate.real(value=value)
    except (InvalidInputError, InputTypeError) as error:
        raise WrongAnswerError(f"{known.name}: {error}") from error
    low, high = known.lower * (1 - allowed), known.upper * (1 + allowed)
    if low <= number <= high:
        return
    hint = "; its square is the optimum" if low <= number * abs(number) <= high else ""
    if not math.isfinite(number):
        raise WrongAnswerError(
            f"{known.name}: the value is {number}, where the optimum is proven to be {_between(known)}"
        )
    below, above = 1 - number / known.lower, number / known.upper - 1
    where = f"{_percent(below)} below what is possible" if number < low else f"{_percent(above)} above the optimum"
    raise WrongAnswerError(
        f"{known.name}: the value {number:.12g} is {where}: the optimum is proven to be {_between(known)}; at most "
        f"{_percent(allowed)} is allowed{hint}"
    )


def _check_objective(known: KnownProblem, achieved: float, allowed: float) -> None:
    __tracebackhide__ = True
    if achieved < known.lower * (1 - max(allowed, FEASIBLE)):
        raise WrongAnswerError(
            f"{known.name}: the answer achieves {achieved:.12g}, {_percent(1 - achieved / known.lower)} below what is "
            f"possible: the optimum is proven to be {_between(known)}; it owes that to constraints it exceeds"
        )
    if not achieved <= known.upper * (1 + allowed):
        raise WrongAnswerError(
            f"{known.name}: the answer achieves {achieved:.12g}, at least {_percent(achieved / known.upper - 1)} above "
            f"the optimum, which is proven to be {_between(known)}; at most {_percent(allowed)} is allowed"
        )


def _between(known: KnownProblem) -> str:
    return f"between {known.lower:.15g} and {known.upper:.15g}"


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"

"""Tests of a solver against proven optima: problems to parametrise tests by, and checks that fail with both bounds.

This module needs neither pytest nor a folder of files: the interval of a problem is proven when it is first read, in
some hundredths of a second.
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

MAX_CELLS = 16  # default of `most_cells`
DEFAULT_TOL = 1e-6  # default relative distance of an answer from the optimum


@dataclass(frozen=True, slots=True, eq=False)
class KnownProblem:
    """A problem of the library as plain arrays, with the proven interval of its optimum.

    Attributes
    ----------
    name : str
        The name in the library, also its ``str``, so that ``ids=str`` names tests.
    problem : Problem
        The problem.
    """

    name: str
    problem: AnyProblem

    @property
    def family(self) -> str:
        """The name of the problem's class, such as ``FitnessForUse``."""
        return type(self.problem).__name__

    @property
    def arrays(self) -> dict[str, Array]:
        return library.of_problem(self.problem)

    @property
    def workload(self) -> Array:
        """W (m, d), one query per row; refused for problems without a matrix."""
        return self._array("workload")

    @property
    def targets(self) -> Array:
        """Maximum variances (m,) of fitness for use; for tables one each."""
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
        """B (k, d), the rows of which a covariance (k, k) is the noise."""
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
        arrays = self.arrays
        if name in arrays:
            return arrays[name]
        raise InvalidInputError(f"{self.name}, a {self.family}, is stated by {', '.join(arrays)}; it has no {name}")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        queries, cells = library.shape(self.problem)
        return f"KnownProblem({self.name}, {queries} x {count_text(cells, 6)})"


def problems(
    names: Sequence[str] | None = None, *, most_cells: int = MAX_CELLS, matrix: bool = False
) -> list[KnownProblem]:
    """Return problems of the library by names of problems or families; by default all families.

    Problems of families have at most `most_cells` cells. The name of a family is its class, or the first word of its
    problems' names. With `matrix`, only problems whose workload is a matrix, not tables.
    Raises `InvalidInputError` for an unknown name.

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
    makers = library.problems()
    limit, needs_matrix = validate.size(most_cells=most_cells), validate.boolean(matrix=matrix)
    all_names = library.named([*collection.FAMILIES] if names is None else names)
    explicit = frozenset(() if names is None else names)
    known_problems = (KnownProblem(name, makers[name]()) for name in all_names)
    return [
        known
        for known in known_problems
        if (known.name in explicit or library.shape(known.problem)[1] <= limit)
        and (not needs_matrix or "workload" in known.arrays)
    ]


def check(
    known: KnownProblem,
    primal: object = None,
    dual: object = None,
    value: float | None = None,
    *,
    tol: float = DEFAULT_TOL,
    scaled: bool = False,
) -> Certificate | None:
    """Assert that an answer is optimal within a tolerance, without scaling or repair.

    Returns the certificate of the point, or None without a point. Raises `WrongAnswerError`, an `AssertionError`, for
    every fault of the answer: it is no point of the problem, has NaN or a wrong shape, is infeasible, or its distance
    from the proven optimum, above or below, exceeds the tolerance.
    Raises `InvalidInputError` or `InputTypeError` for other arguments.

    Parameters
    ----------
    known : KnownProblem
        The problem.
    primal : array, point or mechanism, optional
        The point, as for `certify` of the problem: for noise its covariance on the basis (k, k) or on the cells (d, d),
        or a mechanism; weights of the design queries (k,); a covariance on the common basis (r, r); a local strategy
        Q (m, n), certified with its optimal reconstruction for the average user; a projection (m, n); an estimate
        (d,). It must meet every constraint to 1e-9, and be at most `tol` above the optimum.
    dual : dual weights, or a tuple of their arrays, optional
        Multipliers, such as ``(λ, μ)`` for fitness for use and ``(λ,)`` for total variance. Their lower bound must be
        at most `tol` below the optimum.
    value : float, optional
        The solver's value of the optimum, with a distance of at most `tol`.
    tol : float
        Relative tolerance.
    scaled : bool
        Whether the point is first scaled, or repaired, to be feasible: for solvers that publish answers up to scale,
        such as strategies (`covariance_of_strategy` returns the covariance of a strategy).

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
    known, tol = validate.instance(KnownProblem, known=known), validate.nonnegative_number(tol=tol)
    scaled = validate.boolean(scaled=scaled)
    if primal is None and dual is None and value is None:
        raise InvalidInputError("primal, dual or value must be given, got none of them")
    if value is not None:
        _check_value(known, value, tol)
    if dual is not None:
        _check_dual(known, dual, tol)
    return None if primal is None else _check_point(known, _point(known, primal), scaled, tol)


def distance(known: KnownProblem, primal: object, *, scaled: bool = False) -> float:
    """Return an upper bound on the relative distance of a point's objective from the optimum.

    It is at least 0, includes a violation of up to 1e-9, and is inf for an infeasible point. With `scaled` the point is
    first made feasible.
    Raises `WrongAnswerError` for an object that is no point of the problem.

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.crosscheck import testing
    >>> (known,) = testing.problems(["fitness-prefix-2"])
    >>> round(testing.distance(known, np.eye(2) / 2), 6), testing.distance(known, np.eye(2))
    (0.5, inf)
    """
    known = validate.instance(KnownProblem, known=known)
    return max(_entry(known, _point(known, primal), validate.boolean(scaled=scaled)).most, 0.0)


@dataclass(frozen=True, slots=True)
class Scores:
    """The distances of a solver's answers from the optima of many problems; its `str` is a table of 80 columns.

    Attributes
    ----------
    entries : tuple of leaderboard.Entry
        A row for each problem; `fault` is the reason of a failure.
    tol : float
        Largest relative distance from the optimum that counts as optimal.
    """

    entries: tuple[Entry, ...]
    tol: float

    @property
    def within(self) -> int:
        """Number of feasible answers within `tol` of the optimum."""
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
    most_cells: int = MAX_CELLS,
    matrix: bool = False,
    tol: float = DEFAULT_TOL,
    scaled: bool = False,
) -> Scores:
    """Run a solver on problems of the library, and return the distance of each answer from the proven optimum.

    The solver takes a `KnownProblem` and returns a point, or a tuple of point, dual weights and value, as for `check`,
    or of the first of these. An exception in the solver, an answer that is no point, and dual weights or a value
    farther than `tol` from the optimum are faults in the answer's row.
    Raises `InvalidInputError` as `problems` does.

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.crosscheck import testing
    >>> table = testing.scores(lambda known: np.eye(len(known.basis)), ["fitness-prefix-2"], scaled=True)
    >>> (row,) = table.entries
    >>> table.within, round(row.most, 6), row.violation, row.fault
    (0, 0.5, 0.0, '')
    """
    instances = problems(names, most_cells=most_cells, matrix=matrix)
    solver, scaled = validate.function(solver=solver), validate.boolean(scaled=scaled)
    tol = validate.nonnegative_number(tol=tol)
    return Scores(tuple(_score(solver, known, tol, scaled) for known in instances), tol)


def _score(solver: Callable[[KnownProblem], object], known: KnownProblem, tol: float, scaled: bool) -> Entry:
    """Return a solver's row for one problem: distance, violation, seconds and the first fault."""
    start_time, name = time.perf_counter(), str(getattr(solver, "__name__", "solver"))
    try:
        answer = solver(known)
    except Exception as error:
        return Entry(name, known.name, seconds=time.perf_counter() - start_time, fault=f"failed: {first_line(error)}")
    seconds = time.perf_counter() - start_time
    parts = answer if isinstance(answer, tuple) and len(answer) <= 3 else (answer,)
    padded: list[Any] = [*parts, None, None, None]
    primal, dual, value = padded[:3]
    try:
        entry = replace(_entry(known, _point(known, primal), scaled), solver=name, seconds=seconds)
    except WrongAnswerError as error:
        return Entry(name, known.name, seconds=seconds, fault=str(error))
    try:
        if dual is not None or value is not None:
            check(known, None, dual, value, tol=tol)
    except WrongAnswerError as error:
        return replace(entry, fault=entry.fault or str(error))
    return entry


def _entry(known: KnownProblem, point: object, scaled: bool) -> Entry:
    return distance_entry("", known, known.problem, point, scaled)


def _point(known: KnownProblem, primal: object) -> object:
    """Return an answer as a point of the problem; raises `WrongAnswerError` for other objects."""
    __tracebackhide__ = True
    try:
        if isinstance(primal, np.ndarray | list):
            return library.as_point(known.problem, validate.finite(primal=primal), "covariance")
        return known.problem.as_primal(primal)
    except (InvalidInputError, InputTypeError) as error:
        raise WrongAnswerError(f"{known.name}: primal is no answer: {error}") from error


def _check_point(known: KnownProblem, point: object, scaled: bool, tol: float) -> Certificate:
    __tracebackhide__ = True
    certificate, fault = library.judged(known, known.problem, point, scaled)
    if fault:
        raise WrongAnswerError(f"{known.name}: {fault}")
    _check_objective(known, certificate.objective, tol)
    return certificate


def _check_dual(known: KnownProblem, dual: object, tol: float) -> None:
    """Raise `WrongAnswerError` for multipliers with too low a bound, with the reason if they give none."""
    __tracebackhide__ = True
    point = library.some_answer(known.name).primal
    try:
        with np.errstate(all="ignore"):
            certificate: Certificate = known.problem.certify(point, known.problem.as_dual(dual))
    except (InvalidInputError, InputTypeError) as error:
        raise WrongAnswerError(f"{known.name}: dual proves nothing: {error}") from error
    if certificate.lower_bound >= known.lower * (1 - tol):
        return
    reason = "; ".join(certificate.remarks) or f"the dual weights prove a bound of {certificate.lower_bound:.12g}"
    raise WrongAnswerError(
        f"{known.name}: {reason}, {_percent(1 - certificate.lower_bound / known.lower)} below the optimum, which is "
        f"proven to be {_between(known)}; at most {_percent(tol)} is allowed"
    )


def _check_value(known: KnownProblem, value: object, tol: float) -> None:
    __tracebackhide__ = True
    try:
        number = validate.real(value=value)
    except (InvalidInputError, InputTypeError) as error:
        raise WrongAnswerError(f"{known.name}: {error}") from error
    low, high = known.lower * (1 - tol), known.upper * (1 + tol)
    if low <= number <= high:
        return
    hint = "; its square is the optimum" if low <= number * abs(number) <= high else ""
    if not math.isfinite(number):
        raise WrongAnswerError(
            f"{known.name}: the value is {number}, where the optimum is proven to be {_between(known)}"
        )
    low_share, high_share = 1 - number / known.lower, number / known.upper - 1
    is_low = number < low
    where = f"{_percent(low_share)} below what is possible" if is_low else f"{_percent(high_share)} above the optimum"
    raise WrongAnswerError(
        f"{known.name}: the value {number:.12g} is {where}: the optimum is proven to be {_between(known)}; at most "
        f"{_percent(tol)} is allowed{hint}"
    )


def _check_objective(known: KnownProblem, achieved: float, tol: float) -> None:
    __tracebackhide__ = True
    if achieved < known.lower * (1 - max(tol, FEASIBLE)):
        raise WrongAnswerError(
            f"{known.name}: the answer achieves {achieved:.12g}, {_percent(1 - achieved / known.lower)} below what is "
            f"possible: the optimum is proven to be {_between(known)}; it owes that to constraints it exceeds"
        )
    if not achieved <= known.upper * (1 + tol):
        raise WrongAnswerError(
            f"{known.name}: the answer achieves {achieved:.12g}, at least {_percent(achieved / known.upper - 1)} above "
            f"the optimum, which is proven to be {_between(known)}; at most {_percent(tol)} is allowed"
        )


def _between(known: KnownProblem) -> str:
    return f"between {known.lower:.15g} and {known.upper:.15g}"


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"

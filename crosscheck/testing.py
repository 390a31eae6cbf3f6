"""A solver's tests against proven optima: problems to parametrise tests by, and checks that fail with both bounds.

Nothing here needs pytest, or a folder of files: a problem is proven when its interval is first asked for, in some
hundredths of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from dualmech import validate
from dualmech.crosscheck import collection, library
from dualmech.crosscheck.collection import arrays
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.domain import count_text

MOST_CELLS = 16  # of the problems unless more are asked for
WITHIN = 1e-6  # how far above the optimum an answer may be, relative, unless told otherwise


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
    problem: Any

    @property
    def family(self) -> str:
        """What is minimised: ``FitnessForUse`` the squared privacy cost, and so on."""
        return type(self.problem).__name__

    @property
    def arrays(self) -> dict[str, Array]:
        """All that is asked, as `library.arrays` has it of a folder."""
        return arrays.of_problem(self.problem)

    @property
    def workload(self) -> Array:
        """W (m, d), a query a row; refused where it is no matrix."""
        return self._array("workload")

    @property
    def numbers(self) -> Array:
        """Largest variances (m,) of fitness for use, weights of total variance; of tables one for each."""
        return self._array("targets", "weights")

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
        """What no noise goes below, in exact arithmetic."""
        return library.interval(self.name)[0]

    @property
    def upper(self) -> float:
        """What some noise achieves, in exact arithmetic."""
        return library.interval(self.name)[1]

    def _array(self, *names: str) -> Array:
        held = self.arrays
        for name in names:
            if name in held:
                return held[name]
        raise InvalidInputError(f"{self.name} is stated by {', '.join(held)}; it has no {' or '.join(names)}")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        queries, cells = library.shape(self.problem)
        return f"KnownProblem({self.name}, {queries} x {count_text(cells, 6)})"


def problems(names: Sequence[str] | None = None, *, most_cells: int = MOST_CELLS) -> list[KnownProblem]:
    """Return problems of the library: those named, and of families, or of all, those of at most so many cells.

    A family is named by its class or by the first word of its problems' names.
    Raises `InvalidInputError` for a name that is unknown.

    Examples
    --------
    >>> from dualmech.crosscheck import testing
    >>> (known,) = testing.problems(["fitness-prefix-2"])
    >>> known.workload, known.numbers, round(known.lower, 9), round(known.upper, 9)
    (array([[1., 0.],
           [1., 1.]]), array([1., 1.]), 1.333333333, 1.333333333)
    >>> len(testing.problems(["FitnessForUse"])), len(testing.problems(["local"], most_cells=4))
    (37, 10)
    """
    stated = library.problems()
    limit = validate.size(most_cells=most_cells)
    chosen = library.named([*collection.FAMILIES] if names is None else names)
    explicit = frozenset(() if names is None else names)
    found = (KnownProblem(name, stated[name]()) for name in chosen)
    return [known for known in found if known.name in explicit or library.shape(known.problem)[1] <= limit]


def check_strategy(known: KnownProblem, strategy: npt.ArrayLike, *, within: float = WITHIN) -> float:
    """Assert that unit noise on a strategy (p, d), whose scale does not matter, is optimal within a tolerance.

    Returns what it achieves. Raises `AssertionError`, which says what it achieves and where the optimum is;
    `InvalidInputError` for what is no strategy of the problem.

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.crosscheck import testing
    >>> (known,) = testing.problems(["fitness-prefix-4"])
    >>> testing.check_strategy(known, np.eye(4), within=1e-3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: fitness-prefix-4: the strategy achieves 4, at least 127 % above the optimum, which is ...
    """
    __tracebackhide__ = True
    chosen = validate.instance(KnownProblem, known=known)
    rows = validate.finite(2, strategy=strategy)
    if not library.is_noise(chosen.problem):
        raise InvalidInputError(
            f"known must be answered by noise on a matrix, got a {chosen.family}, which check_answer takes"
        )
    return _near(chosen, library.achieved(chosen.problem, rows), within, "the strategy achieves")


def check_answer(known: KnownProblem, answer: npt.ArrayLike, *, within: float = WITHIN) -> float:
    """Assert that an answer of any family that is one array is optimal within a tolerance, mended to be feasible.

    Weights of the design queries (k,), a covariance on the basis that mechanisms have in common (r, r), a local
    strategy Q (m, n) with any number of outputs, a projection (m, n), an estimate (d,); for noise a strategy. Q is
    judged with the reconstruction that is best for the average user; that of the worst user may be better with another.
    Returns what it achieves; raises as `check_strategy`.

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.crosscheck import testing
    >>> (known,) = testing.problems(["local-histogram-4-1-average"])
    >>> response = (np.e - 1) * np.eye(4) + 1
    >>> round(testing.check_answer(known, response / response.sum(axis=0)) / known.upper, 6)
    1.0
    """
    __tracebackhide__ = True
    chosen = validate.instance(KnownProblem, known=known)
    given = validate.finite(None, answer=answer)
    try:
        found = library.achieved(chosen.problem, given)
    except InvalidInputError as error:
        raise InvalidInputError(f"answer is none to {chosen.name}: {error}") from error
    return _near(chosen, found, within, "the answer achieves")


def check_covariance(known: KnownProblem, covariance: npt.ArrayLike, *, within: float = WITHIN) -> float:
    """Assert the same of the covariance of noise, on the cells (d, d) or on B x (k, k), whatever its scale.

    Where W has full column rank the two are one. Returns what it achieves; raises as `check_strategy`.

    Examples
    --------
    >>> from dualmech.crosscheck import testing
    >>> (known,) = testing.problems(["fitness-prefix-2"])
    >>> round(testing.check_covariance(known, [[2, -1], [-1, 2]]), 9)
    1.333333333
    """
    __tracebackhide__ = True
    chosen = validate.instance(KnownProblem, known=known)
    noise, basis = validate.symmetric(covariance=covariance), chosen.basis
    if noise.shape != (len(basis), len(basis)):
        if len(noise) != basis.shape[1]:
            raise InvalidInputError(
                f"covariance must have {basis.shape[1]} rows, on the cells, or {len(basis)}, on the basis, "
                f"got {len(noise)}"
            )
        noise = basis @ noise @ basis.T
    achieved = library.achieved_by_noise(chosen.problem, noise)
    return _near(chosen, achieved, within, "the covariance achieves")


def check_value(known: KnownProblem, value: float, *, within: float = WITHIN) -> float:
    """Assert that a number that a solver calls the optimum is, within a tolerance: not below what is possible either.

    Returns the number; raises as `check_strategy`.

    Examples
    --------
    >>> from dualmech.crosscheck import testing
    >>> (known,) = testing.problems(["fitness-prefix-2"])
    >>> testing.check_value(known, 1.3333)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: fitness-prefix-2: the value 1.3333 is 0.0025 % below what is possible: the optimum is ...
    """
    __tracebackhide__ = True
    chosen, number = validate.instance(KnownProblem, known=known), validate.real(value=value)
    allowed = validate.nonnegative_number(within=within)
    if number < chosen.lower * (1 - allowed):
        below = 1 - number / chosen.lower
        raise AssertionError(
            f"{chosen.name}: the value {number:.12g} is {_percent(below)} below what is possible: the optimum is "
            f"proven to be {_between(chosen)}; at most {_percent(allowed)} is allowed"
        )
    return _near(chosen, number, within, "the value is")


def _near(known: KnownProblem, achieved: float, within: float, words: str) -> float:
    """Return a number that is at most so much above the upper end, or fail."""
    __tracebackhide__ = True
    allowed = validate.nonnegative_number(within=within)
    if not achieved <= known.upper * (1 + allowed):
        excess = achieved / known.upper - 1
        raise AssertionError(
            f"{known.name}: {words} {achieved:.12g}, at least {_percent(excess)} above the optimum, which is proven "
            f"to be {_between(known)}; at most {_percent(allowed)} is allowed"
        )
    return achieved


def _between(known: KnownProblem) -> str:
    return f"between {known.lower:.15g} and {known.upper:.15g}"


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"

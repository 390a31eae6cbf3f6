"""What general solvers call optimal, before what is proven: what each sheet asks to be computed, and how it looks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import scipy.linalg
from rich.console import Console

from dualmech import linalg
from dualmech.certificate import FEASIBLE
from dualmech.crosscheck import collection, library
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.sheet import Sheet
from dualmech.crosscheck.printing import certified_outcome, table, without_warnings
from dualmech.errors import BackendError
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.validate import Array

# What a general solver says of a problem whose optimum is proven, in the problem's own units and by its raw point.


MOST_CELLS, QUICK_CELLS = 16, 4
TOLERANCE = 1e-12  # gap to prove: far below what is asked of any backend
TIGHT = 1e-10  # what is asked of every backend at its tightest, or the least that it takes

OWN_SIZES = 1e-6, 1e6
"""Optima in this range are of ordinary size: outside of it absolute tolerances mean nothing."""

OTHERS_UNDER_ANOTHER_NAME = frozenset({"DIFFCP"})  # runs SCS
OPTIMAL, INACCURATE, FAILED = "optimal", "optimal_inaccurate", "failed"
IMPOSSIBLE = frozenset({"infeasible", "unbounded", "infeasible_inaccurate", "unbounded_inaccurate"})


@dataclass(frozen=True, slots=True)
class Claim:
    """What a backend says of one problem, beside what is proven of it."""

    problem: str
    status: str  # the backend's, in CVXPY's words, or that it failed
    value: float
    lower: float
    upper: float
    excess: (
        float  # of the raw point, the largest over a constraint or over the value, relative; NaN if not known
    )
    seconds: float  # CVXPY's compiling included

    @property
    def optimal(self) -> bool:
        """Whether it is said to be the optimum, without reserve."""
        return self.status == OPTIMAL

    @property
    def error(self) -> float:
        """How far the value is from the proven interval, relative: negative below it, 0 inside."""
        if self.value < self.lower:
            return self.value / self.lower - 1
        return max(self.value / self.upper - 1, 0.0)

    def beyond(self, tolerance: float) -> bool:
        """Whether the value is farther from the interval than a tolerance, absolute and relative, allows."""
        return abs(self.error) * self.lower > tolerance * (1 + self.upper)


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend at one accuracy, and all that it claims."""

    name: str
    version: str
    tolerance: float  # what it says of itself; NaN where that is not known
    tight: bool
    claims: tuple[Claim, ...]

    @property
    def optimal(self) -> tuple[Claim, ...]:
        """What it calls optimal."""
        return tuple(claim for claim in self.claims if claim.optimal)

    @property
    def below(self) -> tuple[Claim, ...]:
        """What it calls optimal and is below what is possible."""
        return tuple(claim for claim in self.optimal if claim.error < 0)

    @property
    def above(self) -> tuple[Claim, ...]:
        """What it calls optimal and is above the proven interval."""
        return tuple(claim for claim in self.optimal if claim.error > 0)

    @property
    def infeasible(self) -> tuple[Claim, ...]:
        """What it calls optimal where its point breaks a constraint, or does not have the value."""
        return tuple(claim for claim in self.optimal if claim.excess > FEASIBLE)

    def beyond(self, claims: tuple[Claim, ...]) -> int:
        """Return how many claims are farther off than its own tolerance allows."""
        return sum(claim.beyond(self.tolerance) for claim in claims)

    def count(self, *statuses: str) -> int:
        """Return how many problems it said one of these of."""
        return sum(claim.status in statuses for claim in self.claims)

    @property
    def outcome(self) -> Agreement:
        """Nothing here is certified by a backend, so that nothing can disagree."""
        return certified_outcome(True)

    @property
    def gap(self) -> float:
        """The widest proven interval."""
        return max(claim.upper / claim.lower - 1 for claim in self.claims)


def backends() -> dict[str, str]:
    """Return the installed backends that take semidefinite programs, with their versions, each once."""
    from dualmech import reference

    able = reference.backends.installed()
    return {name: version for name, version in able.items() if name not in OTHERS_UNDER_ANOTHER_NAME}


@cache
def small(cells: int, ordinary: bool = True) -> tuple[str, ...]:
    """Return problems on a matrix of at most so many cells, whose optima are of ordinary size or are not."""
    stated = {name: state() for name, state in collection.matrices_problems().items()}
    names = [name for name, problem in stated.items() if problem.workload.shape[1] <= cells]
    low, high = OWN_SIZES
    return tuple(name for name in names if (low <= library.interval(name, TOLERANCE)[0] <= high) is ordinary)


def claims(name: str, version: str, tight: bool, cells: int, ordinary: bool = True) -> Backend:
    """Return what a backend claims of the small problems, each posed in its own units as the paper writes it."""
    from dualmech import reference

    known = reference.backends.ACCURACY.get(name)
    options = reference.backends.at_tolerance(name, TIGHT) if tight and known else {}
    tolerance = np.nan if known is None else max(options.values(), default=known.own)
    found = tuple(claim(each, name, options) for each in small(cells, ordinary))
    return Backend(name, version, tolerance, tight, found)


def claim(problem_name: str, backend: str, options: Mapping[str, float]) -> Claim:
    """Return what a backend says of one problem, under options of its own."""
    from dualmech import reference

    problem = library.problems()[problem_name]()
    program = reference.formulate(problem)
    began = time.perf_counter()
    try:
        with silent_output():
            status = reference.backends.run(program, backend, options=options).status
    except BackendError:
        status = FAILED
    seconds = time.perf_counter() - began
    value = np.nan if program.value is None else float(program.value)
    return Claim(
        problem_name,
        status,
        value,
        *library.interval(problem_name, TOLERANCE),
        excess(problem, program, value),
        seconds,
    )


@dataclass(frozen=True, slots=True)
class Scales:
    """A problem of extreme units, what backends claim of it, and what they prove once it is posed in units near 1."""

    problem: str
    claims: Mapping[str, Claim]  # by backend
    gaps: Mapping[str, float]  # of the reference layer with the same backend; NaN where it failed

    @property
    def outcome(self) -> Agreement:
        """Nothing here is certified by a backend, so that nothing can disagree."""
        return certified_outcome(True)

    @property
    def gap(self) -> float:
        """The widest gap that is proven."""
        return max(self.gaps.values())


def at_extreme_scale(problem_name: str) -> Scales:
    """Return what every installed backend says of one problem, by itself and in the reference layer's units."""
    from dualmech import reference

    found, gaps = {}, {}
    for backend in backends():
        found[backend] = claim(problem_name, backend, {})
        try:
            with silent_output(), without_warnings():
                gaps[backend] = reference.solve(library.problems()[problem_name](), backend=backend).gap
        except BackendError:
            gaps[backend] = np.nan
    return Scales(problem_name, found, gaps)


def excess(problem: Any, program: Any, value: float) -> float:
    """Return the largest relative excess of a solved program's point over a constraint, or over the value claimed."""
    measured = EXCESS.get(type(problem))
    if measured is None or any(variable.value is None for variable in program.variables()):
        return np.nan
    if not value > 0:
        return np.inf
    with np.errstate(all="ignore"):
        return float(measured(problem, program, value))


def _excess_of_targets(problem: FitnessForUse, program: Any, value: float) -> float:
    forms = problem.geometry.forms(problem.geometry.point(program.var_dict["Sigma"].value))
    if forms is None:
        return np.inf
    return max(forms.excess(problem.targets)[0], forms.cost / value) - 1


def _excess_of_cost(problem: TotalVariance, program: Any, value: float) -> float:
    unmoved, factor = problem.geometry.unmoved, linalg.cholesky(program.var_dict["X"].value)
    if factor is None:
        return np.inf
    lift: Array = scipy.linalg.null_space(unmoved) if len(unmoved) else np.eye(len(factor))
    half = scipy.linalg.solve_triangular(factor, lift.T, trans="T", check_finite=False)
    forms = problem.geometry.forms(problem.geometry.point(half.T @ half))
    return np.inf if forms is None else max(forms.total(problem.asked_weights)[0] / value, forms.cost) - 1


EXCESS: dict[type, Callable[[Any, Any, float], float]] = {
    FitnessForUse: _excess_of_targets,
    TotalVariance: _excess_of_cost,
}
"""How the raw point of a family's program is read; a family that is not here has its values held against the proof."""


@contextlib.contextmanager
def silent_output() -> Iterator[None]:
    """Keep standard output free of what libraries in other languages print to it, such as a word on licences."""
    sys.stdout.flush()
    before, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(nowhere)


LEGEND = (
    "Problems of the library whose data are of ordinary size, posed as the papers write them and in their own units. "
    "'optimal': what the backend calls so without reserve; 'reserved': what it calls inaccurate; 'none': no answer; "
    "'impossible': problems that it calls infeasible or unbounded, which none is. Of those called optimal: 'below' the "
    "proven lower end, so that no noise has this value, 'above' the proven upper end, and how many of either by more "
    "than the backend's own tolerance, taken as absolute and relative at once. Within it a value is as good as was "
    "promised. 'infeasible': raw points that break a constraint, or cost more than the value says, by more than 1e-9. "
    "Errors are relative; seconds are of all problems, with CVXPY's compiling."
)

SCALES_LEGEND = (
    "Problems whose optima are far from 1, by the size of their data. 'says' and 'value' are of the backend on the "
    "problem as it is, at its default tolerance; 'proven in units near 1' is the gap that the judge proves of the same "
    "backend's answer where the reference layer poses the problem."
)

WORDS = {OPTIMAL: "optimal", INACCURATE: "inaccurate"}


def _tasks(quick: bool) -> list[Callable[[], Backend]]:
    cells = QUICK_CELLS if quick else MOST_CELLS
    return [
        partial(claims, name, version, tight, cells)
        for name, version in backends().items()
        for tight in (False, True)
    ]


def _show(out: Console, title: str, rows: Iterator[Backend]) -> None:
    headings = (
        *("backend", "tolerance", "problems", "optimal", "reserved", "none", "impossible"),
        *("below", "below, beyond tolerance", "above", "above, beyond tolerance"),
        *("lowest", "highest", "infeasible", "worst excess", "seconds"),
    )
    found = [*rows]
    out.print(table(title, headings, map(_row, found), notes=[LEGEND, *_widest(found)]))


def _row(row: Backend) -> tuple[str, ...]:
    errors = [claim.error for claim in row.optimal] or [0.0]
    return (
        f"{row.name} {row.version}",
        f"{row.tolerance:.0e}",
        *map(str, (len(row.claims), len(row.optimal), row.count(INACCURATE))),
        str(len(row.claims) - len(row.optimal) - row.count(INACCURATE, *IMPOSSIBLE)),
        str(row.count(*IMPOSSIBLE)),
        *(str(len(row.below)), str(row.beyond(row.below)), str(len(row.above)), str(row.beyond(row.above))),
        *(f"{min(errors):.1e}", f"{max(errors):.1e}", str(len(row.infeasible))),
        f"{max([0.0, *(claim.excess for claim in row.optimal)]):.1e}",
        f"{sum(claim.seconds for claim in row.claims):.2g}",
    )


def _widest(rows: list[Backend]) -> list[str]:
    return [f"Widest proven interval: {max(row.gap for row in rows):.1e}, relative."] if rows else []


def _scale_tasks(quick: bool) -> list[Callable[[], Scales]]:
    names = small(MOST_CELLS, ordinary=False)
    return [partial(at_extreme_scale, name) for name in names[: 2 if quick else None]]


def _show_scales(out: Console, title: str, rows: Iterator[Scales]) -> None:
    headings = ("problem", "optimum", "backend", "says", "value", "proven in units near 1")
    drawn = (
        (row.problem, f"{claim.lower:.4g}", name, _word(claim), _value(claim), f"{row.gaps[name]:.0e}")
        for row in rows
        for name, claim in row.claims.items()
    )
    words = ("problem", "backend", "says")
    out.print(table(title, headings, drawn, words, notes=[SCALES_LEGEND]))


def _word(claim: Claim) -> str:
    return WORDS.get(claim.status, claim.status)


def _value(claim: Claim) -> str:
    return f"{claim.value:.4g}" if claim.status in WORDS else "—"


SHEETS = {
    "claims": Sheet("what general solvers call optimal, before the proof", _tasks, _show),
    "scales": Sheet("problems in units far from 1", _scale_tasks, _show_scales),
}

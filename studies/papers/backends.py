"""General solvers' claims of optimality next to proven optima: the tasks of each sheet, and how it looks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import scipy.linalg

import dualmech as dm
from dualmech import fast, reference, workloads
from dualmech.crosscheck import collection, library
from dualmech.crosscheck.sheet import Columns, Row, Sheet, one_table
from dualmech.errors import BackendError
from dualmech.reference import conic
from dualmech.validate import Array

# A general solver's claim on a problem whose optimum is proven, in the problem's own units and by its raw point.

MOST_CELLS = 16
TOLERANCE = 1e-12  # gap to prove: far below the tolerance of any backend
TIGHT = 1e-10  # the tightest tolerance that every backend gets, or the least that it takes

FEASIBLE = 1e-9  # excess up to which a raw point breaks no constraint

OPTIMAL, INACCURATE, FAILED = "optimal", "optimal_inaccurate", "failed"
IMPOSSIBLE = frozenset({"infeasible", "unbounded", "infeasible_inaccurate", "unbounded_inaccurate"})
ANSWERS = IMPOSSIBLE | {OPTIMAL, INACCURATE}


@dataclass(frozen=True, slots=True)
class Claim:
    """A backend's claim on one problem, and the proven interval."""

    problem: str
    status: str  # the backend's, in CVXPY's words, or that it failed
    value: float
    lower: float
    upper: float
    excess: float  # of the raw point, the largest over a constraint or over the value, relative; NaN if not known
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


def summary(claims: Sequence[Claim], tolerance: float) -> dict[str, object]:
    """Return how many claims a backend makes, and how many of those of optimality are how far off.

    An infeasible claim is one of optimality whose point breaks a constraint, or does not have the value; those beyond
    are farther off than the backend's own tolerance allows.
    """
    statuses = [claim.status for claim in claims]
    optimal = [claim for claim in claims if claim.optimal]
    below, above = [claim for claim in optimal if claim.error < 0], [claim for claim in optimal if claim.error > 0]
    errors = [claim.error for claim in optimal] or [0.0]
    return {
        "problems": len(claims),
        "optimal": len(optimal),
        "reserved": statuses.count(INACCURATE),
        "none": sum(status not in ANSWERS for status in statuses),
        "impossible": sum(status in IMPOSSIBLE for status in statuses),
        "below": len(below),
        "below_beyond": sum(claim.beyond(tolerance) for claim in below),
        "above": len(above),
        "above_beyond": sum(claim.beyond(tolerance) for claim in above),
        "lowest": min(errors),
        "highest": max(errors),
        "infeasible": sum(claim.excess > FEASIBLE for claim in optimal),
        "excess": max([0.0, *(claim.excess for claim in optimal)]),
        "seconds": sum(claim.seconds for claim in claims),
    }


def backends() -> dict[str, str]:
    """Return the installed backends that take semidefinite programs, with their versions, each once."""
    able = reference.backends.installed()
    return {name: version for name, version in able.items() if name != "DIFFCP"}  # which runs SCS


@cache
def small(cells: int, ordinary: bool = True) -> tuple[str, ...]:
    """Return problems on a matrix of at most so many cells, whose optima are of ordinary size or are not."""
    stated = {name: state() for name, state in collection.matrices_problems().items()}
    names = [name for name, problem in stated.items() if problem.workload.shape[1] <= cells]
    # Outside of this range absolute tolerances mean nothing.
    return tuple(name for name in names if (1e-6 <= library.interval(name, TOLERANCE)[0] <= 1e6) is ordinary)


def claims(name: str, version: str, tight: bool, cells: int, ordinary: bool = True) -> Row:
    """Return a backend's claims on the small problems, each posed in its own units as the paper writes it."""
    known = reference.backends.ACCURACY.get(name)
    options = reference.backends.at_tolerance(name, TIGHT) if tight and known else {}
    tolerance = np.nan if known is None else max(options.values(), default=known.default)
    claimed = tuple(claim(problem, name, options) for problem in small(cells, ordinary))
    widest = max(item.upper / item.lower - 1 for item in claimed)
    values = {"backend": f"{name} {version}", "tolerance": tolerance, "claims": claimed}
    return Row(values | summary(claimed, tolerance), widest)


def run(program: Any, backend: str, options: Mapping[str, float]) -> tuple[str, float]:
    """Return a backend's status and value of a program, NaN for one without."""
    try:
        with silent_output():
            status = reference.backends.run(program, backend, options=options).status
    except BackendError:
        return FAILED, np.nan
    return status, np.nan if program.value is None else float(program.value)


def claim(problem_name: str, backend: str, options: Mapping[str, float]) -> Claim:
    problem = library.problems()[problem_name]()
    program = reference.formulate(problem)
    began = time.perf_counter()
    status, value = run(program, backend, options)
    seconds = time.perf_counter() - began
    interval = library.interval(problem_name, TOLERANCE)
    return Claim(problem_name, status, value, *interval, excess(problem, program, value), seconds)


def at_extreme_scale(problem_name: str) -> Row:
    """Return every backend's claim on one problem of extreme units, by itself and in the reference layer's units.

    'proven' is the gap of the latter, NaN where the backend failed.
    """
    parts = []
    for backend in backends():
        outcome = claim(problem_name, backend, {})
        try:
            with silent_output():
                proven = reference.solve(library.problems()[problem_name](), backend=backend).gap
        except BackendError:
            proven = np.nan
        value = f"{outcome.value:.4g}" if outcome.status in WORDS else "—"
        word = WORDS.get(outcome.status, outcome.status)
        parts.append(Row({"claim": outcome, "backend": backend, "says": word, "value": value, "proven": proven}))
    return Row({"problem": problem_name}, float(np.nanmax([part.proven for part in parts])), parts=tuple(parts))


def excess(problem: Any, program: Any, value: float) -> float:
    """Return the largest relative excess of a solved program's point over a constraint, or over the value claimed."""
    measured = EXCESS.get(type(problem))
    if measured is None or any(variable.value is None for variable in program.variables()):
        return np.nan
    if not value > 0:
        return np.inf
    with np.errstate(all="ignore"):
        return float(measured(problem, program, value))


def _excess_of_targets(problem: dm.FitnessForUse, program: Any, value: float) -> float:
    forms = problem.geometry.forms(problem.geometry.point(program.var_dict["Sigma"].value))
    if forms is None:
        return np.inf
    return max(forms.excess(problem.targets)[0], forms.cost / value) - 1


def _excess_of_cost(problem: dm.TotalVariance, program: Any, value: float) -> float:
    unmoved = problem.geometry.unmoved
    try:
        factor = np.linalg.cholesky(program.var_dict["X"].value).T
    except np.linalg.LinAlgError:
        return np.inf
    lift: Array = scipy.linalg.null_space(unmoved) if len(unmoved) else np.eye(len(factor))
    half = scipy.linalg.solve_triangular(factor, lift.T, trans="T", check_finite=False)
    forms = problem.geometry.forms(problem.geometry.point(half.T @ half))
    return np.inf if forms is None else max(forms.total(problem.asked_weights)[0] / value, forms.cost) - 1


EXCESS: dict[type, Callable[[Any, Any, float], float]] = {
    dm.FitnessForUse: _excess_of_targets,
    dm.TotalVariance: _excess_of_cost,
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


# Semidefinite programs as files: each read back from its text, solved, and its value held against the proof.

FILES = (
    *("common-random-2-seed-0", "common-random-3-seed-0", "common-random-4-seed-0", "common-example-312"),
    *("weighting-prefix-8-eigen-queries-approximate", "weighting-prefix-8-eigen-queries-pure"),
    *("reuse-prefix-8-after-cells", "reuse-prefix-8-after-total", "local-prefix-4-1-average"),
    *("local-prefix-4-1-worst", "fitness-tables-16x16x16"),
)
"""Problems of the library whose programs are written from CVXPY's own compilation."""


def participation() -> dm.FitnessForUse:
    """State running sums of eight steps, of which every person takes part in two, four apart."""
    return dm.FitnessForUse(workloads.prefix(8), neighbours="participation:2:4")


def dependent_rows() -> dm.CommonMechanism:
    """State the common part of three mechanisms on five cells with four queries of rank three each; they share two."""
    rng, mechanisms = np.random.default_rng(5), []
    shared = rng.standard_normal((2, 5))
    for _ in range(3):
        queries = rng.standard_normal((4, 3)) @ np.vstack([shared, rng.standard_normal((1, 5))])
        root = rng.standard_normal((4, 4))
        mechanisms.append(dm.LinearGaussianMechanism(queries, root @ root.T))
    return dm.CommonMechanism(mechanisms)


STATED: dict[str, Callable[[], Any]] = {
    "common-dependent-rows": dependent_rows,
    "participation-8": participation,
}
"""Problems that the library does not have."""


@cache
def refined() -> dm.Refinement:
    """Return a refinement of two stages: the third query has nothing in common with the others."""
    return fast.refine(dm.FitnessForUse(dm.Workload([[1, 0, 0], [1, 1, 0], [0, 0, 1]]), [1, 1, 4]), tol=1e-9)


def stated(name: str) -> tuple[Any, float, float]:
    """Return a problem by name, and the ends of an interval that has its optimum: a proof's, else the judge's."""
    if name in FILES:
        return library.problems()[name](), *library.interval(name, TOLERANCE)
    if name.startswith("refinement"):
        answer = refined().stages[int(name[-1]) - 1]
    else:
        answer = fast.solve(STATED[name](), tol=TOLERANCE)
    return answer.problem, answer.lower_bound, answer.objective


def file_claims(name: str) -> Row:
    """Return what every backend says of a problem's file, at its default tolerance and at a tight one."""
    problem, lower, upper = stated(name)
    stated_program = reference.matrix_inequalities(problem)
    program = conic.program_of(stated_program.objective, stated_program.blocks, stated_program.entries)
    figures: dict[str, Any] = {"problem": name, "variables": len(stated_program.objective), "width": upper / lower - 1}
    for backend in backends():
        for tight, options in ((False, {}), (True, reference.backends.at_tolerance(backend, TIGHT))):
            status, value = run(program, backend, options)
            # A program that maximises is written with the opposite sign; all these optima are positive.
            figures[label(backend, tight)] = Claim(name, status, abs(value), lower, upper, np.nan, 0.0)
    return Row(figures, upper / lower - 1)


def label(backend: str, tight: bool) -> str:
    return f"{backend} tight" if tight else backend


def _distance(claim: Claim) -> str:
    """Write the relative distance of a value from the interval; in brackets where the backend has a reserve."""
    if claim.status not in WORDS:
        return "none"
    words = f"{claim.error:+.0e}" if claim.error else "0"
    return words if claim.optimal else f"({words})"


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

FILES_LEGEND = (
    "Each problem is written as a SDPA file, read back and solved. Numbers are the relative distance of the value from "
    "the interval that has the optimum, negative below it and 0 inside; 'width' is that interval's. In brackets: what "
    "the backend calls inaccurate. Tight: tolerances of 1e-10, or the least that the backend takes."
)

WORDS = {OPTIMAL: "optimal", INACCURATE: "inaccurate"}

COLUMNS: Columns = (
    *(("backend", "{backend}"), ("tolerance", "{tolerance:.0e}"), ("problems", "{problems}")),
    *(("optimal", "{optimal}"), ("reserved", "{reserved}"), ("none", "{none}"), ("impossible", "{impossible}")),
    *(("below", "{below}"), ("below, beyond tolerance", "{below_beyond}")),
    *(("above", "{above}"), ("above, beyond tolerance", "{above_beyond}")),
    *(("lowest", "{lowest:.1e}"), ("highest", "{highest:.1e}")),
    *(("infeasible", "{infeasible}"), ("worst excess", "{excess:.1e}"), ("seconds", "{seconds:.2g}")),
)

SCALES_COLUMNS: Columns = (
    ("problem", "{claim.problem}"),
    ("optimum", "{claim.lower:.4g}"),
    ("backend", "{backend}"),
    ("says", "{says}"),
    ("value", "{value}"),
    ("proven in units near 1", "{proven:.0e}"),
)


def _tasks(quick: bool) -> list[Callable[[], Row]]:
    cells = 4 if quick else MOST_CELLS
    return [
        partial(claims, name, version, tight, cells) for name, version in backends().items() for tight in (False, True)
    ]


def _widest(rows: Sequence[Row]) -> str:
    return f"Widest proven interval: {max(row.gap for row in rows):.1e}, relative." if rows else ""


def _scale_tasks(quick: bool) -> list[Callable[[], Row]]:
    names = small(MOST_CELLS, ordinary=False)
    return [partial(at_extreme_scale, name) for name in names[: 2 if quick else None]]


def _file_tasks(quick: bool) -> list[Callable[[], Row]]:
    names = [*FILES, *(f"refinement-stage-{number}" for number in (1, 2)), *STATED]
    return [partial(file_claims, name) for name in (names[:1] if quick else names)]


def _file_columns(rows: Sequence[Row]) -> Columns:
    names = [label(backend, tight) for backend in backends() for tight in (False, True)]
    return (
        ("problem", "{problem}"),
        ("variables", "{variables}"),
        ("width", "{width:.0e}"),
        *((name, lambda row, name=name: _distance(getattr(row, name))) for name in names),
    )


SHEETS = {
    "claims": Sheet(
        "what general solvers call optimal, before the proof", _tasks, one_table(COLUMNS, _widest, notes=[LEGEND])
    ),
    "files": Sheet(
        "programs written as SDPA files, read back and solved",
        _file_tasks,
        one_table(_file_columns, notes=[FILES_LEGEND]),
    ),
    "scales": Sheet(
        "problems in units far from 1",
        _scale_tasks,
        one_table(SCALES_COLUMNS, parts=True, words=("problem", "backend", "says"), notes=[SCALES_LEGEND]),
    ),
}

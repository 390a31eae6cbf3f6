"""CVXPY's backends: which are installed, which can do a cone, and the one call that runs them."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import TYPE_CHECKING, cast

import numpy as np

from dualmech import validate
from dualmech.errors import BackendError, did_you_mean, first_line
from dualmech.progress import NO_DEADLINE, Deadline
from dualmech.reference import cp
from dualmech.threads import threads_in_force

if TYPE_CHECKING:
    from cvxpy.reductions.solvers.solver import Solver

SEMIDEFINITE = frozenset({"PSD"})  # the cone that every formulation of fitness for use needs

TOLERANCES = {"CLARABEL": 1e-5, "SCS": 1e-3}  # gap to prove unless another is asked: reached with ease
OTHER_TOLERANCE = 1e-4  # gap to prove with a backend that has no line of its own above

TIME_LIMITS = {"CLARABEL": "time_limit", "SCS": "time_limit_secs", "COPT": "TimeLimit"}
"""The option that limits a backend's seconds."""

THREADS = {"CLARABEL": "max_threads", "COPT": "Threads", "SDPA": "numThreads"}
"""The option for the number of threads, of backends that would take all cores."""

DISTRIBUTIONS = {"COPT": ("coptpy",), "SDPA": ("sdpa-python", "sdpa-multiprecision")}
"""Packages with another name than the backend that they bring; any of them may bring it."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How a backend is told to be accurate."""

    options: tuple[str, ...]  # its tolerances on gaps and residuals, of its own scaled program
    default: float  # the loosest of them where none is asked of it through CVXPY
    share: float  # of the gap that the judge is to prove
    least: float = 0.0  # below which it refuses them, or gives up


ACCURACY = {
    "CLARABEL": Accuracy(("tol_gap_abs", "tol_gap_rel", "tol_feas"), default=1e-8, share=1e-2),
    "SCS": Accuracy(("eps_abs", "eps_rel"), default=1e-5, share=3e-2),
    "SDPA": Accuracy(("epsilonStar", "epsilonDash"), default=1e-7, share=1e-2),
    "CVXOPT": Accuracy(("abstol", "reltol", "feastol"), default=1e-6, share=1e-2, least=1e-8),
    "COPT": Accuracy(("RelGap", "AbsGap", "FeasTol", "DualTol"), default=1e-6, share=1e-2, least=1e-9),
}
"""A backend measures residuals of its own scaled program, the judge the gap after the repair to exact feasibility; the
shares leave room for the difference, as measured on the workloads in the tests."""

SDPA_OWN_CHECKS = "Python recalculation of primal", "k >= N - 1 for N"  # it warns where they do not work out

GIVEN: dict[str, Solver] = {}
"""Solver objects that were passed in place of a name, by their own names."""

SHORTEST = 1e-9  # seconds that a backend is given where none are left: 0 would not limit it

SCS_INTERRUPTED = -5  # the status by which SCS reports that Ctrl-C ended it


@dataclass(frozen=True, slots=True)
class BackendRun:
    """How a run ended: the backend's own word, whether a limit ended it, and what it took.

    The values themselves are in the program's variables and constraints.
    """

    status: str
    exhausted: bool
    iterations: int
    seconds: float


def installed(cones: frozenset[str] = SEMIDEFINITE) -> dict[str, str]:
    """Return the installed conic backends that can do all of some cones, with their versions.

    With `cones`, CVXPY's names of the cones: ``"PSD"``, ``"ExpCone"``, ``"SOC"``.
    Returns a dict of str to str: versions by name of backend, in CVXPY's order of preference.

    Examples
    --------
    >>> from dualmech.reference import backends
    >>> {"CLARABEL", "SCS"} <= set(backends.installed())
    True
    """
    present = set(cp.installed_solvers()) - GIVEN.keys()  # CVXPY may have noted what it was given
    return {name: _version(name) for name in _known() if name in present and cones <= _cones(name)}


def backend_name(backend: str | Solver, cones: frozenset[str] = SEMIDEFINITE) -> str:
    """Return a backend's name in capitals; refuse one that is not installed or cannot do the cones.

    A solver object, as ``cvxpy.Problem.solve`` takes one, goes by the name that it gives itself.

    Raises `BackendError`, whose message lists the backends that can; `InputTypeError` where `backend` is not text.
    """
    able = installed(cones)
    name = said_name(backend)
    solver = _solver_object(backend)
    if solver is not None and cones <= _cone_names(solver):
        GIVEN[name] = solver
        return name
    if isinstance(backend, str) and (name := name.upper()) in able:
        return name
    if solver is not None or name in cp.installed_solvers():
        fault = f"cannot do the cones {_join_names(cones)}"
    else:
        fault = "is not installed" if name in _known() else "is unknown: CVXPY has no such conic solver"
    meant = did_you_mean(name, able)
    raise BackendError(f"backend {name!r} {fault}{meant}; installed ones that can: {_join_names(able) or 'none'}")


def _solver_object(backend: object) -> Solver | None:
    """Return a backend that is a solver object of CVXPY; None otherwise, and for a text without loading CVXPY."""
    is_object = not isinstance(backend, str) and isinstance(backend, cp.reductions.solvers.solver.Solver)
    return cast("Solver", backend) if is_object else None


def said_name(backend: str | Solver) -> str:
    """Return the name of a backend: a text as it is, a solver object by its own name."""
    solver = _solver_object(backend)
    return validate.text(backend=backend) if solver is None else str(solver.name())


def tolerance(backend: str) -> float:
    """Return the gap that is promised with a backend unless another is asked."""
    return TOLERANCES.get(backend, OTHER_TOLERANCE)


def accuracy(backend: str, tol: float) -> dict[str, float]:
    """Return the options with which a backend is accurate enough to certify a gap of `tol`; none for one not known."""
    return at_tolerance(backend, ACCURACY[backend].share * tol) if backend in ACCURACY else {}


def at_tolerance(backend: str, tolerance: float) -> dict[str, float]:
    """Return the options that set all tolerances of a backend, no lower than it takes; none for one not known."""
    known = ACCURACY.get(backend)
    return {} if known is None else dict.fromkeys(known.options, max(tolerance, known.least))


def run(
    program: cp.Problem,
    backend: str,
    *,
    tol: float | None = None,
    deadline: Deadline = NO_DEADLINE,
    options: Mapping[str, object] | None = None,
) -> BackendRun:
    """Solve a program, whatever the outcome; the answer is left in its variables.

    It gets as many threads as BLAS (`dualmech.threads`).
    Raises `BackendError` where the backend failed, refused an option, or has no limit on time; `KeyboardInterrupt`
    for ctrl-C.

    - `program`: the program to solve;
    - `backend`: a name that `backend_name` returned;
    - `tol`: gap that the judge is to prove; by default the backend is as accurate as it is by itself;
    - `deadline`: when to end, for the backends that have a limit on seconds; CVXPY's time to compile counts;
    - `options`: the backend's own options; they overrule those that `tol` chose.
    """
    began = time.perf_counter()
    # CVXPY evaluates the objective where the backend ended, be it outside the domain of a logarithm.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # An inaccurate ending becomes the solution's status, and the judge says how inaccurate it is.
        for warning in ("Solution may be inaccurate", *SDPA_OWN_CHECKS):
            warnings.filterwarnings("ignore", message=warning)
        try:
            if backend == "CVXOPT":  # it keeps the options of an earlier run, and CVXPY leaves them after a failure
                import_module("cvxopt.solvers").options.clear()
            tolerances = {} if tol is None else accuracy(backend, tol)
            threads = {THREADS[backend]: threads_in_force()} if backend in THREADS else {}
            settings = {**tolerances, **threads, **_limit(program, backend, deadline), **(options or {})}
            program.solve(solver=GIVEN.get(backend, backend), verbose=False, warm_start=True, **settings)
        except BackendError:
            raise
        except Exception as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from error
            raise BackendError(f"backend {backend} failed: {first_line(error)}") from error
    status, count = str(program.status), getattr(program.solver_stats, "num_iters", None)
    # SCS has no status for a limit that was reached: its answer is then called inaccurate, whatever its status.
    limited = status == cp.USER_LIMIT or (backend == "SCS" and status.endswith("_inaccurate"))
    return BackendRun(status, limited, int(count or 0), time.perf_counter() - began)


def _limit(program: cp.Problem, backend: str, deadline: Deadline) -> dict[str, float]:
    """Return the option that ends a backend in time, counted once CVXPY has compiled the program and kept it."""
    if deadline.left is None:
        return {}
    check_time_limit(backend)
    program.get_problem_data(backend)
    return {TIME_LIMITS[backend]: max(deadline.left or 0.0, SHORTEST)}


def check_time_limit(backend: str) -> None:
    """Raise `BackendError` for a backend that has no limit on seconds."""
    if backend not in TIME_LIMITS:
        raise BackendError(
            f"time_limit is known for {_join_names(TIME_LIMITS)}, not for {backend}; pass that backend's own option"
        )


def _known() -> dict[str, Solver]:
    """Return CVXPY's conic backends by name, installed or not, in its order of preference."""
    known: dict[str, Solver] = cp.reductions.solvers.defines.SOLVER_MAP_CONIC
    return known


def _cones(name: str) -> set[str]:
    """Return the names of the cones that a backend takes; CVXPY calls a packed semidefinite cone SvecPSD."""
    return _cone_names(_known()[name])


def _cone_names(solver: Solver) -> set[str]:
    return {cone.__name__.removeprefix("Svec") for cone in solver.SUPPORTED_CONSTRAINTS}


def packages(name: str) -> tuple[str, ...]:
    """Return the packages of which each brings a backend, the usual one first."""
    return DISTRIBUTIONS.get(name, (name.lower(),))


def _version(name: str) -> str:
    """Return the version of the package that brings a backend, with its name where that is not the usual one."""
    usual, *others = packages(name)
    for package in (usual, *others):
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(package)
            return version if package == usual else f"{version} ({package})"
    return "unknown"


def _was_interrupted(error: Exception) -> bool:
    """Whether Ctrl-C is behind a failure: SCS catches the signal itself, and CVXPY drops the status it gives.

    The result of SCS is then found only in the frame of CVXPY to which it was returned.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        returned = frame.f_locals.get("solution")
        if isinstance(returned, dict) and returned.get("info", {}).get("status_val") == SCS_INTERRUPTED:
            return True
    return False


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))

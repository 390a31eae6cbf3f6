"""CVXPY's backends: the installed ones, their cones, and a function to run them."""

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

SEMIDEFINITE = frozenset({"PSD"})  # for all formulations of fitness for use

DEFAULT_TOLERANCES = {"CLARABEL": 1e-5, "SCS": 1e-3}  # default gap to prove, which is reached easily
OTHER_DEFAULT_TOLERANCE = 1e-4  # for other backends

TIME_LIMIT_OPTIONS = {"CLARABEL": "time_limit", "SCS": "time_limit_secs", "COPT": "TimeLimit"}
"""The option for a backend's time limit in seconds."""

THREAD_OPTIONS = {"CLARABEL": "max_threads", "COPT": "Threads", "SDPA": "numThreads"}
"""The option for the number of threads, for backends that use all cores by default."""

DISTRIBUTIONS = {"COPT": ("coptpy",), "SDPA": ("sdpa-python", "sdpa-multiprecision")}
"""Packages that provide a backend under another name; any of them suffices."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The options that control the accuracy of a backend."""

    options: tuple[str, ...]  # tolerances on gaps and residuals of the backend's scaled program
    default: float  # the largest default tolerance through CVXPY
    share: float  # the tolerances relative to the gap to prove
    minimum: float = 0.0  # the backend refuses smaller tolerances, or fails


ACCURACY = {
    "CLARABEL": Accuracy(("tol_gap_abs", "tol_gap_rel", "tol_feas"), default=1e-8, share=1e-2),
    "SCS": Accuracy(("eps_abs", "eps_rel"), default=1e-5, share=3e-2),
    "SDPA": Accuracy(("epsilonStar", "epsilonDash"), default=1e-7, share=1e-2),
    "CVXOPT": Accuracy(("abstol", "reltol", "feastol"), default=1e-6, share=1e-2, minimum=1e-8),
    "COPT": Accuracy(("RelGap", "AbsGap", "FeasTol", "DualTol"), default=1e-6, share=1e-2, minimum=1e-9),
}
"""A backend measures residuals of its scaled program; the judge measures the gap after the repair to exact feasibility.
The shares account for the difference, and were measured on the workloads in the tests."""

SDPA_WARNINGS = "Python recalculation of primal", "k >= N - 1 for N"  # warnings from its checks

SOLVER_OBJECTS: dict[str, Solver] = {}
"""Solver objects passed by users, by name."""

MIN_SECONDS = 1e-9  # minimum time limit of a backend: 0 would mean no limit

SCS_INTERRUPTED = -5  # status of SCS after Ctrl-C


@dataclass(frozen=True, slots=True)
class BackendRun:
    """The backend's status, whether a limit ended the run, iterations and seconds.

    The values are in the variables and constraints of the program.
    """

    status: str
    exhausted: bool
    iterations: int
    seconds: float


def installed(cones: frozenset[str] = SEMIDEFINITE) -> dict[str, str]:
    """Return the versions of installed conic backends that support some cones, by name, in CVXPY's order of preference.

    - `cones`: CVXPY's names of the cones: ``"PSD"``, ``"ExpCone"``, ``"SOC"``.

    Examples
    --------
    >>> from dualmech.reference import backends
    >>> {"CLARABEL", "SCS"} <= set(backends.installed())
    True
    """
    available = set(cp.installed_solvers()) - SOLVER_OBJECTS.keys()  # CVXPY may have registered them
    return {name: _version(name) for name in _known() if name in available and cones <= _cones(name)}


def backend_name(backend: str | Solver, cones: frozenset[str] = SEMIDEFINITE) -> str:
    """Return a backend's name in capitals.

    For a solver object, as for ``cvxpy.Problem.solve``, it is the object's name. Raises `BackendError` for a backend
    that is not installed or does not support the cones, with a list of suitable backends in the message;
    `InputTypeError` if `backend` is neither text nor a solver object.
    """
    suitable = installed(cones)
    name = name_of(backend)
    solver = _solver_object(backend)
    if solver is not None and cones <= _cone_names(solver):
        SOLVER_OBJECTS[name] = solver
        return name
    if isinstance(backend, str) and (name := name.upper()) in suitable:
        return name
    if solver is not None or name in cp.installed_solvers():
        fault = f"does not support the cones {_join_names(cones)}"
    else:
        fault = "is not installed" if name in _known() else "is unknown: CVXPY has no such conic solver"
    hint = did_you_mean(name, suitable)
    raise BackendError(
        f"backend {name!r} {fault}{hint}; suitable installed backends: {_join_names(suitable) or 'none'}"
    )


def _solver_object(backend: object) -> Solver | None:
    """Return a backend if it is a solver object of CVXPY, else None (for text without loading CVXPY)."""
    is_object = not isinstance(backend, str) and isinstance(backend, cp.reductions.solvers.solver.Solver)
    return cast("Solver", backend) if is_object else None


def name_of(backend: str | Solver) -> str:
    """Return the name of a backend, given as text or as a solver object."""
    solver = _solver_object(backend)
    return validate.text(backend=backend) if solver is None else str(solver.name())


def tolerance(backend: str) -> float:
    return DEFAULT_TOLERANCES.get(backend, OTHER_DEFAULT_TOLERANCE)


def accuracy(backend: str, tol: float) -> dict[str, float]:
    """Return the options that make a backend accurate enough to certify a gap of `tol`; empty if unknown."""
    return at_tolerance(backend, ACCURACY[backend].share * tol) if backend in ACCURACY else {}


def at_tolerance(backend: str, tolerance: float) -> dict[str, float]:
    """Return the options that set all tolerances of a backend, subject to their minimum; empty if unknown."""
    settings = ACCURACY.get(backend)
    return {} if settings is None else dict.fromkeys(settings.options, max(tolerance, settings.minimum))


def run(
    program: cp.Problem,
    backend: str,
    *,
    tol: float | None = None,
    deadline: Deadline = NO_DEADLINE,
    options: Mapping[str, object] | None = None,
) -> BackendRun:
    """Run a backend on a program; the answer is in the program's variables.

    The backend gets the number of threads of BLAS (`dualmech.threads`). Raises `BackendError` if the backend fails,
    refuses an option, or does not support a time limit; `KeyboardInterrupt` after Ctrl-C.

    - `program`: the program to solve;
    - `backend`: a name that `backend_name` returned;
    - `tol`: gap that the judge has to prove; by default the backend's default accuracy is used;
    - `deadline`: for backends with a time limit; it includes CVXPY's compilation;
    - `options`: the backend's options; they override those determined by `tol`.
    """
    start_time = time.perf_counter()
    # CVXPY evaluates the objective at the final point, possibly outside the domain of a logarithm.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        for warning in ("Solution may be inaccurate", *SDPA_WARNINGS):
            warnings.filterwarnings("ignore", message=warning)
        try:
            if backend == "CVXOPT":  # it keeps options after a failure
                import_module("cvxopt.solvers").options.clear()
            tolerances = {} if tol is None else accuracy(backend, tol)
            threads = {THREAD_OPTIONS[backend]: threads_in_force()} if backend in THREAD_OPTIONS else {}
            settings = {**tolerances, **threads, **_limit(program, backend, deadline), **(options or {})}
            program.solve(solver=SOLVER_OBJECTS.get(backend, backend), verbose=False, warm_start=True, **settings)
        except BackendError:
            raise
        except Exception as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from error
            raise BackendError(f"backend {backend} failed: {first_line(error)}") from error
    status, num_iterations = str(program.status), getattr(program.solver_stats, "num_iters", None)
    # SCS has no status for a time limit: its answer is then called inaccurate.
    was_limited = status == cp.USER_LIMIT or (backend == "SCS" and status.endswith("_inaccurate"))
    return BackendRun(status, was_limited, int(num_iterations or 0), time.perf_counter() - start_time)


def _limit(program: cp.Problem, backend: str, deadline: Deadline) -> dict[str, float]:
    """Return the backend's time-limit option, less the compilation time."""
    if deadline.left is None:
        return {}
    check_time_limit(backend)
    program.get_problem_data(backend)
    return {TIME_LIMIT_OPTIONS[backend]: max(deadline.left or 0.0, MIN_SECONDS)}


def check_time_limit(backend: str) -> None:
    """Raise `BackendError` for a backend that has no limit on seconds."""
    if backend not in TIME_LIMIT_OPTIONS:
        raise BackendError(
            f"time_limit is supported for {_join_names(TIME_LIMIT_OPTIONS)}, not for {backend}: use its own option"
        )


def _known() -> dict[str, Solver]:
    solvers: dict[str, Solver] = cp.reductions.solvers.defines.SOLVER_MAP_CONIC
    return solvers


def _cones(name: str) -> set[str]:
    """Return the names of the cones that a backend supports; CVXPY calls a packed semidefinite cone SvecPSD."""
    return _cone_names(_known()[name])


def _cone_names(solver: Solver) -> set[str]:
    return {cone.__name__.removeprefix("Svec") for cone in solver.SUPPORTED_CONSTRAINTS}


def packages(name: str) -> tuple[str, ...]:
    """Return the packages that provide a backend, the usual one first."""
    return DISTRIBUTIONS.get(name, (name.lower(),))


def _version(name: str) -> str:
    """Return the version of the package that provides a backend, with its name unless it is the usual one."""
    usual_package, *other_packages = packages(name)
    for package in (usual_package, *other_packages):
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(package)
            return version if package == usual_package else f"{version} ({package})"
    return "unknown"


def _was_interrupted(error: Exception) -> bool:
    """Return whether Ctrl-C caused a failure: SCS catches the signal, and CVXPY drops its status.

    The result of SCS is then only available in CVXPY's stack frame.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        solution = frame.f_locals.get("solution")
        if isinstance(solution, dict) and solution.get("info", {}).get("status_val") == SCS_INTERRUPTED:
            return True
    return False


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))

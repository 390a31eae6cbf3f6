"""`dualmech.fast.solve`: validation of options, choice of the method, and judged answers."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.fast.engine.loop import Limits
from dualmech.fast.methods import FAMILY_SOLVERS, METHODS, REGISTERED, Method, by_name, method_class
from dualmech.problems.base import Problem
from dualmech.progress import Callback
from dualmech.solution import Solution, require_solution, warn_if_uncertified
from dualmech.threads import blas_threads
from dualmech.watching import verbosely

if TYPE_CHECKING:
    from dualmech.geometry.orbits import Orbits
    from dualmech.mechanisms.local import LocalMechanism


Dual = TypeVar("Dual")
Made = TypeVar("Made")
P = ParamSpec("P")
R = TypeVar("R")


def _reject_unknown_options(function: Callable[P, R]) -> Callable[P, R]:
    option_names = [*inspect.signature(function).parameters][1:]

    @functools.wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in option_names and name != "problem":
                matches = difflib.get_close_matches(name, option_names, 1)
                hint = f"; did you mean {matches[0]!r}?" if matches else ""
                owners = [kind for kind in map(method_class, METHODS) if name in {field.name for field in fields(kind)}]
                if owners:
                    hint = f"; it is an option of a method: {' or '.join(f'fast.{kind.__name__}' for kind in owners)}"
                raise InputTypeError(f"solve has no option {name!r}, it has {', '.join(option_names)}{hint}")
        return function(*arguments, **options)

    return checked


@_reject_unknown_options
def solve(
    problem: Problem[Dual, Made],
    *,
    method: str | Method | Callable[[Any], Any] = "auto",
    tol: float = 1e-6,
    start: Solution | LocalMechanism | npt.ArrayLike | None = None,
    orbits: Iterable[Any] | Orbits | None = None,
    max_iterations: int | None = None,
    time_limit: float | None = None,
    callback: Callback | None = None,
    verbose: bool = False,
    threads: int | None = None,
) -> Solution[Dual, Made]:
    """Solve a problem with the library's own solver and let the problem judge the answer.

    Raises `InvalidInputError` or `InputTypeError` for a problem that has no fast solver, or options out of range.

    Parameters
    ----------
    problem : FitnessForUse, PrivacyFirst, TotalVariance, LocalStrategy or any other of the library's problems
        The problem to solve.
    tol : float, default 1e-6
        Gap to prove, relative to the lower bound. If double precision is insufficient, the answer is no worse than
        at a looser tolerance.
    method : str, method or callable, default "auto"
        A name means a method with its default options; a method object can set others: ``fast.solve(problem,
        method=fast.SoftmaxNewton(hessian="printed"))``. `Auto`, `FixedPoint`, `Newton`, `ClosedForm`, `SoftmaxNewton`,
        `SoftmaxGradient`, `Exact`, `Restart`, `ProjectedGradient` and `PublishedGradient` document which problems they
        solve, and have the names ``auto``, ``fixed_point``, ``newton``, ``closed_form``, ``softmax_newton``,
        ``softmax_gradient``, ``exact``, ``restart``, ``gradient`` and ``published_gradient``. A custom method is a
        function, or its name from `register`: it takes the problem and returns or yields points, with or without dual
        weights. The points are made feasible and judged; limits are checked after every yield. Errors in the function
        are raised as a `BackendError` that names the method, except a `DualmechError`.
    start : Solution, optional
        A solution of the same or a similar problem as a warm start: with the same geometry and numbers of neighbours
        and queries; for the trace of `CommonMechanism`, with the same numbers of mechanisms and of rows in the basis.
        `QueryWeighting`, `ReuseFitness`, the volume of `CommonMechanism`, products and split noise accept no start.
        The gradient descent of `LocalStrategy` starts from a strategy matrix (m, n), a `LocalMechanism` or a solution
        of `LocalStrategy`, which must be ε-private with rows that span all user types; the answer is no worse.
    orbits : iterable of (d,) arrays, or Orbits, optional
        Permutations of the cells that leave the problem invariant, checked by `dualmech.Orbits.of`: the solver then has
        one weight for each orbit. Only for `FitnessForUse`, `PrivacyFirst` and `TotalVariance` on geometry ``dense``.
    max_iterations : int, default 1000
        Limit on eigendecompositions, or on steps of Newton's method for a soft maximum. The current step is finished;
        for common mechanisms and strategies of local privacy a step takes several decompositions.
    time_limit : float, optional
        Seconds after which the best answer is returned, for all parts of a run together; a step that is likely to
        take longer is not started.
    callback : callable, optional
        Receives a `Progress` after each step.
    verbose : bool, default False
        Whether to show progress in a line on standard error.
    threads : int, optional
        Threads of linear algebra; by default the environment variable ``DUALMECH_THREADS``, else one, which was
        fastest in all measurements. Judges, proofs and releases always use the variable. Among simultaneous solves,
        the first one determines the number.

    Returns
    -------
    Solution
        With ``status`` CERTIFIED if the judge proved the gap; otherwise with the best answer, its certified gap and the
        termination reason, and an `UncertifiedWarning` is issued.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(64), targets=1.0))
    >>> answer.status.name, round(answer.objective, 4)
    ('CERTIFIED', 4.4579)
    >>> round(fast.solve(dm.TotalVariance(dm.workloads.prefix(64))).objective, 1)
    282.2
    >>> round(fast.solve(dm.LocalStrategy(dm.workloads.prefix(8), epsilon=1.0)).objective, 2)
    220.25
    """
    if type(problem).__name__ not in FAMILY_SOLVERS or not isinstance(problem, Problem):
        names = ", ".join(FAMILY_SOLVERS)
        raise InputTypeError(f"problem must be one that the fast layer solves ({names}), got {type(problem).__name__}")
    solver = method_for(problem, method)
    options = {name: value for name, value in {"start": start, "orbits": orbits}.items() if value is not None}
    for name in options:
        solver.check_option(problem, name)
    _check_start(problem, start)
    limits = Limits.validated(tol, max_iterations, time_limit, callback)
    with blas_threads(threads), verbosely(verbose, type(problem).__name__, callback) as report:
        answer = solver.solve(problem, replace(limits, callback=report), **options)
    return warn_if_uncertified(answer, stacklevel=4)  # outside the wrapper


def method_for(problem: object, method: object) -> Method:
    """Return the method for a name, a method or a function; raise an error if it is not for the problem."""
    if isinstance(method, str):
        names = [*METHODS, *REGISTERED]
        if method not in names or not by_name(method).takes(problem):
            if method in REGISTERED:
                classes = ", ".join(REGISTERED[method].problems)
                raise InputTypeError(f"method {method!r} is registered for {classes}, got a {type(problem).__name__}")
            validate.choice([name for name in names if by_name(name).takes(problem)], method=method)
        return by_name(method)
    if not isinstance(method, Method):
        if not callable(method):
            raise InputTypeError(
                f"method must be a name, a method of dualmech.fast or a function of the problem, "
                f"got {type(method).__name__}"
            )
        from dualmech.fast.custom import Custom  # few methods are custom

        return Custom(str(getattr(method, "__name__", type(method).__name__)), function=method)
    if not method.takes(problem):
        raise InputTypeError(
            f"method {method.name!r} is for {', '.join(method.problems)}, got a {type(problem).__name__}"
        )
    return method


def _check_start(problem: object, start: object) -> None:
    """Raise `InvalidInputError` for a solution on a geometry with different dual weights."""
    name = _geometry(problem)
    other = _geometry(require_solution(start, "start").problem) if name and start is not None else ""
    # The geometries dense and stream have the same weights.
    if other and name != other and {name, other} != {"dense", "stream"}:
        raise InvalidInputError(f"start must be on geometry {name!r} of the problem, got geometry {other!r}")


def _geometry(problem: object) -> str:
    return getattr(getattr(problem, "geometry", None), "name", "")

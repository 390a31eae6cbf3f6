"""`dualmech.fast.solve`: its options checked, its method found, its answer judged."""

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


def _unknown_options_refused(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap the function so that an unknown keyword raises an error of the library."""
    known = [*inspect.signature(function).parameters][1:]

    @functools.wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known and name != "problem":
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                owners = [kind for kind in map(method_class, METHODS) if name in {field.name for field in fields(kind)}]
                if owners:
                    hint = f"; it is an option of a method: {' or '.join(f'fast.{kind.__name__}' for kind in owners)}"
                raise InputTypeError(f"solve has no option {name!r}, it has {', '.join(known)}{hint}")
        return function(*arguments, **options)

    return checked


@_unknown_options_refused
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
        Gap to prove, relative to the lower bound. If double precision cannot reach it, the answer is no worse than at
        a looser tolerance.
    method : str, method or callable, default "auto"
        A name stands for a method with its default options; a method object can set others:
        ``fast.solve(problem, method=fast.SoftmaxNewton(hessian="printed"))``. `Auto`, `FixedPoint`, `Newton`,
        `ClosedForm`, `SoftmaxNewton`, `SoftmaxGradient`, `Exact`, `Restart`, `ProjectedGradient` and
        `PublishedGradient` say which problems they solve, and have the names ``auto``, ``fixed_point``, ``newton``,
        ``closed_form``, ``softmax_newton``, ``softmax_gradient``, ``exact``, ``restart``, ``gradient`` and
        ``published_gradient``.
        A custom method is a function, or the name that `register` gave it: it takes the problem and returns or yields
        points, with dual weights if it has some. The points are made feasible and judged; the limits are checked
        between two yields. An error in the function becomes a `BackendError` that names the method; errors of the
        library stay as they are.
    start : Solution, optional
        A solution of the same or a similar problem to start from: same geometry, same numbers of neighbours and
        queries; for the trace of `CommonMechanism` same numbers of mechanisms and of rows in the basis.
        `QueryWeighting`, `ReuseFitness`, the volume of `CommonMechanism`, products and split noise take no start; the
        interior-point method of `QueryWeighting` takes some ten steps from anywhere. The gradient descent of
        `LocalStrategy` starts from a strategy matrix (m, n), a `LocalMechanism` or a solution of `LocalStrategy`,
        ε-private and with rows that span all user types: the answer is no worse.
    orbits : iterable of (d,) arrays, or Orbits, optional
        Permutations of the cells that leave the problem as it is, checked by `dualmech.Orbits.of`: the solver then has
        one weight for each orbit. `FitnessForUse`, `PrivacyFirst` and `TotalVariance` on geometry ``dense`` alone.
    max_iterations : int, default 1000
        Eigendecompositions, or steps of Newton's method on a soft max, after which to stop. The step under way is
        finished; for common mechanisms and strategies of local privacy it takes several.
    time_limit : float, optional
        Seconds after which the best answer so far is returned; all parts of a run share them, and a step that is
        likely to take longer is not begun.
    callback : callable, optional
        Receives a `Progress` after each step.
    verbose : bool, default False
        Whether to show progress in a line on standard error.
    threads : int, optional
        Threads of linear algebra; by default the environment variable ``DUALMECH_THREADS``, else one, which is the
        quickest wherever it was measured. Judges, proofs and releases follow the variable. Among simultaneous solves
        the first decides.

    Returns
    -------
    Solution
        With ``status`` CERTIFIED where the judge proved the gap; otherwise the best answer found, the gap
        that was proven, the reason, and an `UncertifiedWarning`.

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
        known = ", ".join(FAMILY_SOLVERS)
        raise InputTypeError(f"problem must be one that the fast layer solves ({known}), got {type(problem).__name__}")
    solver = method_for(problem, method)
    options = {name: value for name, value in {"start": start, "orbits": orbits}.items() if value is not None}
    for name in options:
        solver.check_option(problem, name)
    _check_start(problem, start)
    limits = Limits.validated(tol, max_iterations, time_limit, callback)
    with blas_threads(threads), verbosely(verbose, type(problem).__name__, callback) as tell:
        answer = solver.solve(problem, replace(limits, callback=tell), **options)
    return warn_if_uncertified(answer, stacklevel=4)  # above the check of keywords


def method_for(problem: object, method: object) -> Method:
    """Return the method of a name, or a method or a function as it is given; refuse one that is for other problems."""
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
    """Refuse a solution on a geometry with other weights."""
    here = _geometry(problem)
    there = _geometry(require_solution(start, "start").problem) if here and start is not None else ""
    # On a matrix and on a stream the weights are the same.
    if there and here != there and {here, there} != {"dense", "stream"}:
        raise InvalidInputError(f"start is a point of geometry {there!r}, the problem stands on {here!r}")


def _geometry(problem: object) -> str:
    return getattr(getattr(problem, "geometry", None), "name", "")

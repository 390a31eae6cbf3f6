"""`dualmech.fast.solve`: which solver a family has, and what it is called with."""

from __future__ import annotations

import difflib
import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy.typing as npt

from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.fast import custom, methods
from dualmech.fast.engine.loop import Limits
from dualmech.fast.engine.precision import no_worse_than_looser
from dualmech.fast.methods import Auto, Custom, FixedPoint, Method, Newton
from dualmech.problems.base import Problem
from dualmech.progress import Callback
from dualmech.solution import Solution, require_solution, warn_if_uncertified
from dualmech.threads import blas_threads
from dualmech.watching import verbosely

if TYPE_CHECKING:
    from dualmech.geometry.orbits import Orbits
    from dualmech.mechanisms.local import LocalMechanism


@dataclass(frozen=True, slots=True)
class Solver:
    """A solver, called with a problem, the `Limits` and a method; whether it takes a start, and symmetries.

    `aims`: whether its steps depend on the tolerance, so that one beyond double precision can end in a worse answer.
    """

    place: str | Callable[..., Solution]  # a function, or its place, by which it is loaded when it is first called
    starts: bool = False
    ties: bool = False
    aims: bool = False

    @property
    def run(self) -> Callable[..., Solution]:
        """The function that solves."""
        function: Callable[..., Solution]
        function = pkgutil.resolve_name(self.place) if isinstance(self.place, str) else self.place
        return function


SOLVERS = {
    "FitnessForUse": Solver("dualmech.fast.fitness:solve_fitness", starts=True, ties=True, aims=True),
    "PrivacyFirst": Solver("dualmech.fast.fitness:solve_fitness", starts=True, ties=True, aims=True),
    "TotalVariance": Solver("dualmech.fast.fitness:solve_variance", starts=True, ties=True, aims=True),
    "SoftmaxFitness": Solver("dualmech.fast.softmax.smoothed:solve_softmax", starts=True),
    "QueryWeighting": Solver("dualmech.fast.weighting:solve_weighting"),
    "CommonMechanism": Solver("dualmech.fast.common:solve_common", starts=True),
    "ReuseFitness": Solver("dualmech.fast.reuse:solve_reuse", aims=True),
    "LocalProjection": Solver("dualmech.fast.local.estimate:solve_projection"),
    "NonnegativeEstimate": Solver("dualmech.fast.local.estimate:solve_estimate"),
    "LocalStrategy": Solver("dualmech.fast.local.strategy:solve_strategy", starts=True),
}
"""The solver of each family of problems, by the name of its class."""

TIGHT = ("dense", "blocks", "stream", "product")
"""Geometries whose gap vanishes at the optimum, but for rounding; others have an interval that no tolerance narrows."""

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
                owners = [*methods.owners(name)]
                if owners:
                    hint = f"; it is an option of a method: {' or '.join(f'fast.{owner}' for owner in owners)}"
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
    solver = SOLVERS.get(type(problem).__name__)
    if solver is None or not isinstance(problem, Problem):
        known = ", ".join(SOLVERS)
        raise InputTypeError(f"problem must be one that the fast layer solves ({known}), got {type(problem).__name__}")
    chosen = methods.method_for(problem, method)
    named_method: dict[str, object] = {} if isinstance(chosen, Auto) else {"method": chosen}
    if start is not None:
        _check_start(problem, solver, chosen, start)
        named_method["start"] = start
    if orbits is not None:
        if not solver.ties or isinstance(chosen, Custom):
            raise InputTypeError(f"option 'orbits' is not for {_whom(problem, chosen)}")
        named_method["orbits"] = orbits
    limits = Limits.validated(tol, max_iterations, time_limit, callback)
    with blas_threads(threads), verbosely(verbose, type(problem).__name__, callback) as tell:
        limits = replace(limits, callback=tell)
        if isinstance(chosen, Custom):
            answer = custom.follow(problem, limits, chosen, lambda: solver.run(problem, Limits.validated(tol)).dual)
        elif solver.aims and isinstance(chosen, Auto | FixedPoint | Newton) and _geometry(problem) in TIGHT:
            answer = no_worse_than_looser(lambda within: solver.run(problem, within, **named_method), limits)
        else:
            answer = solver.run(problem, limits, **named_method)
    return warn_if_uncertified(answer, stacklevel=4)  # above the check of keywords


def _check_start(problem: object, solver: Solver, method: Method, start: object) -> None:
    """Refuse a start that the method cannot begin with, and a solution on a geometry with other weights."""
    if not solver.starts or isinstance(method, Custom):
        raise InputTypeError(f"option 'start' is not for {_whom(problem, method)}")
    here = _geometry(problem)
    there = _geometry(require_solution(start, "start").problem) if here else ""
    # On a matrix and on a stream the weights are the same.
    if there and here != there and {here, there} != {"dense", "stream"}:
        raise InvalidInputError(f"start is a point of geometry {there!r}, the problem stands on {here!r}")


def _whom(problem: object, method: Method) -> str:
    return f"a custom method, {method.name}" if isinstance(method, Custom) else type(problem).__name__


def _geometry(problem: object) -> str:
    return getattr(getattr(problem, "geometry", None), "name", "")

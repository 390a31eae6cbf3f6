"""dualmech.fast: the library's own solvers. This folder, `fast/`, imports as `dualmech.fast`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Never, TypeAlias, Unpack, overload

from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.fast import common, fitness, own, reuse, weighting
from dualmech.fast.common import chain
from dualmech.fast.eigen import EigenDesign, eigen_design, eigen_weights
from dualmech.fast.engine.loop import Limits
from dualmech.fast.fitness import FitnessOptions, LocalOptions, MethodOptions, OrbitOptions, SmoothOptions, StartOptions
from dualmech.fast.local import estimate, strategy
from dualmech.fast.own import register
from dualmech.fast.reductions import OPTIONS
from dualmech.fast.refinement import refine
from dualmech.fast.softmax import smoothed
from dualmech.fast.softmax.published import METHODS, SoftmaxOptions
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.local import LocalMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.problems.base import Problem
from dualmech.problems.common import CommonDual, CommonMechanism
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.local.estimate import EstimateDual, NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection, ProjectionDual
from dualmech.problems.local.strategy import LocalDual, LocalStrategy
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.progress import Callback
from dualmech.solution import Solution, require_solution, warn_if_uncertified
from dualmech.threads import blas_threads
from dualmech.watching import verbosely

__all__ = ["EigenDesign", "SoftmaxOptions", "chain", "eigen_design", "eigen_weights", "refine", "register", "solve"]

Solver = Callable[..., Solution]

SOLVERS: dict[type, Solver] = {
    FitnessForUse: fitness.solve_fitness,
    PrivacyFirst: fitness.solve_fitness,
    TotalVariance: fitness.solve_variance,
    SoftmaxFitness: smoothed.solve_softmax,
    QueryWeighting: weighting.solve_weighting,
    CommonMechanism: common.solve_common,
    ReuseFitness: reuse.solve_reuse,
    LocalProjection: estimate.solve_projection,
    NonnegativeEstimate: estimate.solve_estimate,
    LocalStrategy: strategy.solve_strategy,
}
"""By problem, what solves it: a function of the problem, the `Limits` and options of its own."""

MATRIX_METHODS = METHODS
"""Methods of `FitnessForUse` that need a matrix of queries, whatever structure the workload has."""

Linear: TypeAlias = LinearGaussianMechanism
Noise: TypeAlias = GaussianPrivacy


@overload
def solve(problem: FitnessForUse | PrivacyFirst, **options: Unpack[FitnessOptions]) -> Solution[FitnessDual, Noise]: ...
@overload
def solve(problem: TotalVariance, **options: Unpack[OrbitOptions]) -> Solution[VarianceDual, Noise]: ...
@overload
def solve(problem: SoftmaxFitness, **options: Unpack[SmoothOptions]) -> Solution[SoftmaxDual, Linear]: ...
@overload
def solve(problem: QueryWeighting, **options: Unpack[MethodOptions]) -> Solution[WeightingDual, Linear]: ...
@overload
def solve(problem: CommonMechanism, **options: Unpack[StartOptions]) -> Solution[CommonDual, Any]: ...
@overload
def solve(problem: ReuseFitness, **options: Unpack[MethodOptions]) -> Solution[ReuseDual, Linear]: ...
@overload
def solve(problem: LocalStrategy, **options: Unpack[LocalOptions]) -> Solution[LocalDual, LocalMechanism]: ...
@overload
def solve(problem: LocalProjection, **options: Unpack[MethodOptions]) -> Solution[ProjectionDual, Never]: ...
@overload
def solve(problem: NonnegativeEstimate, **options: Unpack[MethodOptions]) -> Solution[EstimateDual, Never]: ...
def solve(
    problem: object,
    *,
    tol: float = 1e-6,
    max_iterations: int | None = None,
    time_limit: float | None = None,
    callback: Callback | None = None,
    verbose: bool = False,
    threads: int | None = None,
    **options: object,
) -> Solution:
    """Solve a problem with the library's own solver and let the problem judge the answer.

    Raises `InvalidInputError` or `InputTypeError` for a problem that has no fast solver, or options out of range.

    Parameters
    ----------
    problem : FitnessForUse, PrivacyFirst, TotalVariance, LocalStrategy or any other of the library's problems
        What is asked.
    tol : float, default 1e-6
        Gap to prove, relative to the lower bound.
    method : {"auto", "fixed_point", "newton"}, or callable
        ``auto`` begins with the fixed point and finishes with Newton's method where that is cheaper; for
        `SoftmaxFitness`, `QueryWeighting` and `ReuseFitness` it is Newton's method at once. `FitnessForUse`,
        `PrivacyFirst` and `SoftmaxFitness` have two more: ``softmax_newton`` is SM-II, the paper's own algorithm but
        for its Hessian, which `options` can print as the paper does, and ``softmax_gradient`` the gradient descent that
        the paper compares it with. For `CommonMechanism` ``auto`` is
        ``closed_form`` for two mechanisms, which has nothing to iterate, and ``fixed_point`` for more.
        For `LocalStrategy` it is ``exact`` up to 20 user types, column generation that prices all 2^n patterns, and
        ``restart`` beyond, which searches for patterns and proves less; ``gradient`` is the paper's projected
        gradient descent, ``published_gradient`` the steps of its authors' code, whose derivative omits a term.
        A custom method is a function: it takes the problem and returns or yields points, with dual weights if it has
        some; or the name that `register` gave it. Its points are made feasible and judged, the limits hold between two
        yields. An error in it becomes a `BackendError` that names it, but for the library's own errors.
    rng : numpy.random.Generator or int, default 0
        Of the random starts of ``restart`` and of gradient descent; `LocalStrategy` alone.
    outputs : int, optional
        Outputs of the random strategy that gradient descent begins with, four times the user types by default.
    step_size : float, optional
        Length of its steps, halved after every 50, in units in which ``W'W`` has trace n (``published_gradient``: in
        those of the average variance); found by trial by default.
    iterations : int, default 250
        Its steps once their length is known.
    options : SoftmaxOptions, optional
        The parameters of these two.
    start : Solution, optional
        A solution of the same or a similar problem (same geometry and numbers of neighbours and queries; for
        `CommonMechanism` of mechanisms and of rows in the basis) to start from; not for `QueryWeighting`, whose
        interior-point method takes some ten steps from anywhere, nor for `ReuseFitness`, products and split noise.
        For the gradient descent of `LocalStrategy` a strategy matrix (m, n), a `LocalMechanism` or a solution of
        `LocalStrategy`, ε-private and with rows that span all user types: the answer is no worse.
    orbits : iterable of (d,) arrays, or Orbits, optional
        Permutations of the cells that change nothing, checked by `dualmech.Orbits.of`: the solver then has one weight
        for each orbit. `FitnessForUse`, `PrivacyFirst` and `TotalVariance` on geometry ``dense`` alone.
    max_iterations : int, default 1000
        Eigendecompositions, or steps of Newton's method on a soft max, after which to stop; the step under way
        is finished, which takes several where mechanisms are combined or strategies of local privacy are sought.
    time_limit : float, optional
        Seconds after which the best answer so far is returned; all parts of a run share them, and a step that is
        likely to take longer is not begun.
    callback : callable, optional
        Receives a `Progress` after each step.
    verbose : bool, default False
        Whether to show the news in a line on standard error.
    threads : int, optional
        Threads of linear algebra; by default what the variable ``DUALMECH_THREADS`` of the environment says, else one,
        which is the quickest wherever it was measured; judges, proofs and releases follow the variable. Of solves at
        one time the first decides.

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
    solver = SOLVERS.get(type(problem))
    if solver is None:
        known = ", ".join(kind.__name__ for kind in SOLVERS)
        raise InputTypeError(f"problem must be one that the fast layer solves ({known}), got {type(problem).__name__}")
    if (mine := own.find(problem, options.get("method", "auto"))) is not None:
        solver = _following(problem, solver, tol, *mine)
    _check_options(problem, solver, options)
    limits = Limits.validated(tol, max_iterations, time_limit, callback)
    with blas_threads(threads), verbosely(verbose, type(problem).__name__, callback) as tell:
        answer = solver(problem, replace(limits, callback=tell), **options)
    return warn_if_uncertified(answer)


def _following(problem: object, solver: Solver, tol: float, custom: own.Method, name: str) -> Solver:
    """Return the solver that follows a given method, with dual weights of the library where it has none."""

    def some_dual() -> object:
        return solver(problem, Limits.validated(tol)).dual

    def following(problem: Problem, limits: Limits, *, method: object) -> Solution:
        return own.follow(problem, limits, custom, name, some_dual)

    return following


def _check_options(problem: object, solver: Solver, options: dict[str, object]) -> None:
    """Refuse an option that a solver does not have, by its name and with the one that may be meant."""
    described = inspect.signature(solver).parameters.values()
    own = [each.name for each in described if each.kind is inspect.Parameter.KEYWORD_ONLY]
    for name in options:
        if name not in own:
            useful = OPTIONS.get(_geometry(problem), own)
            taken = [each for each in own if each in useful]
            known = ("tol", *taken, "max_iterations", "time_limit", "callback", "verbose", "threads")
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputTypeError(
                f"option {name!r} is not for {type(problem).__name__}, which takes {', '.join(known)}{hint}"
            )
    if (start := options.get("start")) is not None and (here := _geometry(problem)):
        there = _geometry(require_solution(start, "start").problem)
        # On a matrix and on a stream the weights are the same.
        if there and here != there and {here, there} != {"dense", "stream"}:
            raise InvalidInputError(f"start is a point of geometry {there!r}, the problem stands on {here!r}")


def _geometry(problem: object) -> str:
    return getattr(getattr(problem, "geometry", None), "name", "")

"""dualmech.fast: the library's own solvers. This folder, `fast/`, imports as `dualmech.fast`."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from dualmech.errors import InputTypeError
from dualmech.fast import fitness, softmax, variance, weighting
from dualmech.fast.eigen import EigenDesign, eigen_design
from dualmech.fast.refinement import refine
from dualmech.fast.softmax_newton import SoftmaxOptions
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.solution import Solution

__all__ = ["EigenDesign", "SoftmaxOptions", "eigen_design", "refine", "solve"]


@singledispatch
def solve(problem: Any, **options: Any) -> Solution:
    """Solve a problem with the library's own solver and let the problem judge the answer.

    Parameters
    ----------
    problem : FitnessForUse, PrivacyFirst, TotalVariance, SoftmaxFitness or QueryWeighting
        What is asked.
    tol : float, default 1e-6
        Gap to prove, relative to the lower bound.
    method : {"auto", "fixed_point", "newton"}
        ``auto`` begins with the fixed point and finishes with Newton's method where that is cheaper; for
        `SoftmaxFitness` and `QueryWeighting` it is Newton's method at once. `FitnessForUse` and `PrivacyFirst`
        have two more: ``softmax_newton`` is the paper's own algorithm, SM-II, and ``softmax_gradient`` the
        gradient descent that the paper compares it with.
    options : SoftmaxOptions, optional
        The parameters of these two.
    start : Solution, optional
        A solution of the same or a similar problem (same numbers of neighbours and queries) to start from; not
        for `QueryWeighting`, whose interior-point method takes some ten steps from anywhere.
    max_iterations : int, default 1000
        Eigendecompositions, or steps of Newton's method on a soft max, after which to stop; the one under way
        is finished.
    time_limit : float, optional
        Seconds after which the best answer so far is returned.
    callback : callable, optional
        Receives a `Progress` after each step.

    Returns
    -------
    Solution
        With ``status`` CERTIFIED where the judge proved the gap; otherwise the best answer found, the gap
        that was proven, the reason, and an `UncertifiedWarning`.

    Raises
    ------
    InvalidInputError, InputTypeError
        A problem that has no fast solver, or options out of range.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(64), targets=1.0))
    >>> answer.status.name, round(answer.objective, 4)
    ('CERTIFIED', 4.4579)
    >>> round(fast.solve(dm.TotalVariance(dm.workloads.prefix(64))).objective, 3)
    282.202
    """
    raise InputTypeError(
        f"problem must be one that the fast layer solves (FitnessForUse, PrivacyFirst, TotalVariance, "
        f"SoftmaxFitness, QueryWeighting), got {type(problem).__name__}"
    )


solve.register(FitnessForUse, fitness.solve)
solve.register(PrivacyFirst, fitness.solve)
solve.register(TotalVariance, variance.solve)
solve.register(SoftmaxFitness, softmax.solve)
solve.register(QueryWeighting, weighting.solve)

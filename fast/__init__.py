"""dualmech.fast: the library's own solvers. This folder, `fast/`, imports as `dualmech.fast`."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from dualmech.errors import InputTypeError
from dualmech.fast import fitness
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.solution import Solution

__all__ = ["solve"]


@singledispatch
def solve(problem: Any, **options: Any) -> Solution:
    """Solve a problem with the library's own solver and let the problem judge the answer.

    Parameters
    ----------
    problem : FitnessForUse or PrivacyFirst
        What is asked.
    tol : float, default 1e-6
        Gap to prove, relative to the lower bound.
    method : {"auto", "fixed_point", "newton"}
        ``auto`` begins with the fixed point and finishes with Newton's method where that is cheaper.
    start : Solution, optional
        A solution of the same or a similar problem (same numbers of neighbours and queries) to start from.
    max_iterations : int, default 1000
        Eigendecompositions after which to stop; the step under way is finished.
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
    """
    raise InputTypeError(
        f"problem must be one that the fast layer solves (FitnessForUse, PrivacyFirst), got {type(problem).__name__}"
    )


solve.register(FitnessForUse, fitness.solve)
solve.register(PrivacyFirst, fitness.solve)
